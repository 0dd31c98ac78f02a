# mmdet's COCO instance data with the annotations parsed once per node and mapped by every process.
_base_ = 'mmdet::_base_/datasets/coco_instance.py'

custom_imports = dict(imports=['mmshared'])

dataset_type = 'SharedCocoDataset'
train_dataloader = dict(dataset=dict(type=dataset_type))
val_dataloader = dict(dataset=dict(type=dataset_type))
test_dataloader = dict(dataset=dict(type=dataset_type))
