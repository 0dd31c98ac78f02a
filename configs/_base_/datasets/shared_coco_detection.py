# mmdet's COCO detection data with the annotations parsed once per node and mapped by every process.
_base_ = 'mmdet::_base_/datasets/coco_detection.py'

custom_imports = dict(imports=['mmshared'])

dataset_type = 'SharedCocoDataset'
# mmdet's pipelines, but for the type of the transform that loads annotations.
train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=None),
    dict(type='LoadSharedAnnotations', with_bbox=True),
    dict(type='Resize', scale=(1333, 800), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=None),
    dict(type='Resize', scale=(1333, 800), keep_ratio=True),
    dict(type='LoadSharedAnnotations', with_bbox=True),
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
train_dataloader = dict(
    collate_fn=dict(type='packed_collate'), dataset=dict(type=dataset_type, pipeline=train_pipeline))
val_dataloader = dict(
    collate_fn=dict(type='packed_collate'), dataset=dict(type=dataset_type, pipeline=test_pipeline))
test_dataloader = dict(
    collate_fn=dict(type='packed_collate'), dataset=dict(type=dataset_type, pipeline=test_pipeline))
val_evaluator = dict(type='SharedCocoMetric')
test_evaluator = dict(type='SharedCocoMetric')
