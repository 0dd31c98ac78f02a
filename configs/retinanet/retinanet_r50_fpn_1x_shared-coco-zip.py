# As retinanet_r50_fpn_1x_shared-coco.py, with the images read from COCO's own zip files: nothing has to be unpacked.
_base_ = [
    'mmdet::_base_/models/retinanet_r50_fpn.py', '../_base_/datasets/shared_coco_detection_zip.py',
    'mmdet::_base_/schedules/schedule_1x.py', 'mmdet::_base_/default_runtime.py', 'mmdet::retinanet/retinanet_tta.py'
]

# As in mmdet's retinanet_r50_fpn_1x_coco.py.
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=0.0001))

# Workers live only while they are needed.
train_cfg = dict(type='LeanTrainLoop')
val_cfg = dict(type='LeanValLoop')
test_cfg = dict(type='LeanTestLoop')
default_hooks = dict(node_memory=dict(type='NodeMemoryHook'))
