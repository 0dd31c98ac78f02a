_base_ = [
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    '../_base_/datasets/shared_coco_instance.py',
    'mmdet::_base_/schedules/schedule_1x.py',
    'mmdet::_base_/default_runtime.py',
]

# Workers live only while they are needed.
train_cfg = dict(type='LeanTrainLoop')
val_cfg = dict(type='LeanValLoop')
test_cfg = dict(type='LeanTestLoop')
default_hooks = dict(node_memory=dict(type='NodeMemoryHook'))
