"""Low-precision number formats in plain torch, on any device: what quantising kernels are measured against.

`minifloat`: FP8 and FP4 elements; `e8m0`: power-of-two scales; `packing`: two FP4 codes a byte. `philox`: the
random words of stochastic rounding. `recipe`: which elements, which scales, and where scales come from;
`delayed`: the state of scales that come from earlier tensors. `scales`: scales of amax values. `quantise`:
tensors to `Quantised` values and back. `scale_layout`: the tiled layout of scales that block-scaled MMA
reads. `measures`: how far a quantised tensor is from the exact one.

No fp8 cast of torch is used: on overflow some versions give NaN, others saturate.
"""
