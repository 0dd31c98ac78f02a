_base_ = 'mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py'

custom_imports = dict(imports=['mmshared'])

dataset_type = 'SharedCocoDataset'
train_dataloader = dict(collate_fn=dict(type='packed_collate'), dataset=dict(type=dataset_type))
val_dataloader = dict(collate_fn=dict(type='packed_collate'), dataset=dict(type=dataset_type))
test_dataloader = dict(collate_fn=dict(type='packed_collate'), dataset=dict(type=dataset_type))
val_evaluator = dict(type='SharedCocoMetric')
test_evaluator = dict(type='SharedCocoMetric')

# Workers live only while they are needed.
train_cfg = dict(type='LeanTrainLoop')
val_cfg = dict(type='LeanValLoop')
test_cfg = dict(type='LeanTestLoop')
default_hooks = dict(node_memory=dict(type='NodeMemoryHook'))
