"""The checks of `clients.py`, one file for each part of the protocol.

They expect these models, all of version 1, tensors named INPUT0, OUTPUT0 and so on:

- `identity_T` for T of bool, int8 ... int64, uint8 ... uint64, fp16, bf16, fp32, fp64, bytes:
  identity, max_batch_size 8, dims [-1];
- `identity_nobatch` FP32 [4], max_batch_size 0; `identity_raw` FP32 [4], max_batch_size 8;
- `identity_two`: INPUT0 FP32 [-1], INPUT1 INT32 [-1], to OUTPUT0, OUTPUT1, max_batch_size 8;
- `classify`: identity FP32 [4], max_batch_size 8, labels apple, banana, cherry, pickle;
  `classify_nobatch`: the same with max_batch_size 0; `classify_int`: INT32, no labels;
- `slow`: identity FP32 [-1], max_batch_size 8, 300 ms for each run;
- `addsub`: ONNX, INPUT0, INPUT1 INT32 [16], to their sum and difference, max_batch_size 8;
- `scalars`, `scalars_generated`: ONNX, x FP32 [1] to y, twice it, one value a row in the model; `reshaped`:
  identity FP32 [-1, 2, -1] to [1, -1, 2, -1]; `labelled`: three times identity FP32 [2], labels apple, banana
  of OUTPUT0 and cat, dog of OUTPUT1;
- `digits` of `examples/models`;
- `magika` and `resnet50`, if they are there.
"""
