# A very small RTMDet (it converts itself to SyncBN), with what a checkpoint can hold: EMA, schedulers, best score.
_base_ = '../../configs/demo/rtmdet_demo.py'

model = dict(
    backbone=dict(widen_factor=0.0625),
    neck=dict(in_channels=[16, 32, 64], out_channels=16),
    bbox_head=dict(in_channels=16, feat_channels=16, stacked_convs=1),
)
train_dataloader = dict(batch_size=2, num_workers=1)
val_dataloader = dict(batch_size=2, num_workers=0, persistent_workers=False)
test_dataloader = dict(batch_size=2, num_workers=0, persistent_workers=False)
train_cfg = dict(max_epochs=1, val_interval=1)
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval=1, save_best='coco/bbox_mAP_50', rule='greater'))
custom_hooks = [dict(type='EMAHook', ema_type='ExpMomentumEMA', momentum=0.01, update_buffers=True)]
