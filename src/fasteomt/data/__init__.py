"""Data sets: COCO and PNG-mask folders read into class-id masks, and generated ones written as COCO."""
