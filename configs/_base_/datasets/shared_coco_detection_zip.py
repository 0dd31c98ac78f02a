# mmdet's COCO detection data, with the images read from COCO's own train2017.zip and val2017.zip as they were downloaded.
# Whatever is not in them, such as the annotation files, is read from the disk.
_base_ = './shared_coco_detection.py'

train_images = dict(backend='record', archive='data/coco/train2017.zip')
val_images = dict(backend='record', archive='data/coco/val2017.zip')

train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=train_images),
    dict(type='LoadSharedAnnotations', with_bbox=True),
    dict(type='Resize', scale=(1333, 800), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=val_images),
    dict(type='Resize', scale=(1333, 800), keep_ratio=True),
    dict(type='LoadSharedAnnotations', with_bbox=True),
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
# mmdet's datasets have backend_args=None, which a dict cannot be merged into.
train_dataloader = dict(dataset=dict(backend_args=dict(_delete_=True, **train_images), pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(backend_args=dict(_delete_=True, **val_images), pipeline=test_pipeline))
test_dataloader = dict(dataset=dict(backend_args=dict(_delete_=True, **val_images), pipeline=test_pipeline))
