# The demo: a small RTMDet, from random weights, on the shapes that tools/make_demo_data.py draws.
_base_ = 'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py'

custom_imports = dict(imports=['mmshared'])

dataset_type = 'SharedCocoDataset'
data_root = 'work_dirs/demo/data/'
metainfo = dict(classes=('disc', 'square', 'triangle', 'star'))
max_epochs = 8
base_lr = 0.004

model = dict(
    backbone=dict(widen_factor=0.25, init_cfg=None),
    neck=dict(in_channels=[64, 128, 256], out_channels=64),
    bbox_head=dict(in_channels=64, feat_channels=64, num_classes=4),
    test_cfg=dict(nms_pre=300, max_per_img=50))

train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=None),
    dict(type='LoadSharedAnnotations', with_bbox=True),
    dict(type='RandomFlip', prob=[0.3, 0.3], direction=['horizontal', 'vertical']),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=None),
    dict(type='LoadSharedAnnotations', with_bbox=True),
    # No Resize in the pipeline: a scale factor is still needed to map boxes back.
    dict(type='Resize', scale=(160, 160), keep_ratio=True),
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    batch_sampler=None,
    collate_fn=dict(type='packed_collate'),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        metainfo=metainfo,
        ann_file='annotations/train.json',
        data_prefix=dict(img='train/'),
        filter_cfg=dict(filter_empty_gt=True, min_size=16),
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=10,
    num_workers=1,
    collate_fn=dict(type='packed_collate'),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        metainfo=metainfo,
        ann_file='annotations/val.json',
        data_prefix=dict(img='val/'),
        pipeline=test_pipeline))
test_dataloader = val_dataloader

val_evaluator = dict(type='SharedCocoMetric', ann_file=data_root + 'annotations/val.json', proposal_nums=(100, 1, 10))
test_evaluator = val_evaluator

train_cfg = dict(_delete_=True, type='LeanTrainLoop', max_epochs=max_epochs, val_interval=1)
val_cfg = dict(type='LeanValLoop')
test_cfg = dict(type='LeanTestLoop')
optim_wrapper = dict(optimizer=dict(lr=base_lr), clip_grad=dict(max_norm=10))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', eta_min=base_lr * 0.01, begin=2, end=max_epochs, T_max=max_epochs - 2,
         convert_to_iter_based=True),
]
default_hooks = dict(
    logger=dict(interval=25),
    checkpoint=dict(interval=4, max_keep_ckpts=1),
    node_memory=dict(type='NodeMemoryHook', interval=10))
custom_hooks = []
randomness = dict(seed=0)
