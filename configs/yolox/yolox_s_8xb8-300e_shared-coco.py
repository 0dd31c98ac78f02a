_base_ = 'mmdet::yolox/yolox_s_8xb8-300e_coco.py'

custom_imports = dict(imports=['mmshared'])

dataset_type = 'SharedCocoDataset'
# The annotations are inside MultiImageMixDataset, which mixes the images of several samples.
train_dataset = dict(dataset=dict(type=dataset_type))
train_dataloader = dict(collate_fn=dict(type='packed_collate'), dataset=dict(dataset=dict(type=dataset_type)))
val_dataloader = dict(collate_fn=dict(type='packed_collate'), dataset=dict(type=dataset_type))
test_dataloader = dict(collate_fn=dict(type='packed_collate'), dataset=dict(type=dataset_type))
val_evaluator = dict(type='SharedCocoMetric')
test_evaluator = dict(type='SharedCocoMetric')

# Workers live only while they are needed.
train_cfg = dict(type='LeanTrainLoop')
val_cfg = dict(type='LeanValLoop')
test_cfg = dict(type='LeanTestLoop')
default_hooks = dict(node_memory=dict(type='NodeMemoryHook'))
