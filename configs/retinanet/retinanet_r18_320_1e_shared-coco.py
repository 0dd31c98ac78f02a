# A short trial on real images, for machines without a GPU too: one epoch from random weights at 320 pixels.
#   bash tools/dist_train.sh configs/retinanet/retinanet_r18_320_1e_shared-coco.py 2 --data-root DIR
_base_ = [
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    '../_base_/datasets/shared_coco_detection.py',
    'mmdet::_base_/schedules/schedule_1x.py',
    'mmdet::_base_/default_runtime.py',
]

# Nothing is downloaded, so no layer may be frozen and the batch norms have to learn. The head is a light one, and low
# scores count: after one epoch there are no others.
model = dict(
    backbone=dict(depth=18, frozen_stages=-1, norm_eval=False, init_cfg=None),
    neck=dict(in_channels=[64, 128, 256, 512], out_channels=96),
    bbox_head=dict(in_channels=96, feat_channels=96, stacked_convs=2),
    test_cfg=dict(nms_pre=200, score_thr=0.001))

train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=None),
    dict(type='LoadSharedAnnotations', with_bbox=True),
    dict(type='Resize', scale=(320, 320), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=None),
    dict(type='Resize', scale=(320, 320), keep_ratio=True),
    dict(type='LoadSharedAnnotations', with_bbox=True),
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
train_dataloader = dict(batch_size=4, num_workers=1, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(batch_size=4, num_workers=1, dataset=dict(pipeline=test_pipeline))
test_dataloader = dict(batch_size=4, num_workers=1, dataset=dict(pipeline=test_pipeline))

train_cfg = dict(type='LeanTrainLoop', max_epochs=1)
val_cfg = dict(type='LeanValLoop')
test_cfg = dict(type='LeanTestLoop')
optim_wrapper = dict(optimizer=dict(lr=0.005), clip_grad=dict(max_norm=10))
param_scheduler = [dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=10)]
default_hooks = dict(logger=dict(interval=5), node_memory=dict(type='NodeMemoryHook'))
