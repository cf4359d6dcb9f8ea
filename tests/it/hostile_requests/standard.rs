//! More models of hostile requests: operators of ONNX that one line tells.

/// In the form of `cases::of_lines`.
pub const LINES: &str = "
einsum Einsum a:f:-1,-1=2,3 b:f:-1,-1=3,2 | | equation='ij,jk->ik' | y:f:2 | 13
einsum_trace Einsum a:f:-1,-1=3,3 | | equation='ii->i' | y:f:1 | 13
einsum_ellipsis Einsum a:f:-1,-1,-1=2,3,4 b:f:-1,-1,-1=2,4,3 | | equation='...ij,...jk->...ik' | y:f:3 | 13
einsum_sum Einsum a:f:-1,-1,-1=2,3,4 | | equation='ijk->k' | y:f:1 | 13
qlinear_conv QLinearConv x:u8:-1,-1,-1,-1=1,1,8,8 s z w:u8:-1,-1,-1,-1=1,1,3,3 s z s z | s:f: z:u8: | | y:u8:4 | 13
qlinear_conv_scales QLinearConv x:u8:-1,-1,-1,-1=1,1,8,8 s:f:=@1 z:u8:=@1 w:u8:-1,-1,-1,-1=1,1,3,3 t:f:-1=1 u:u8:-1=1 v:f:= r:u8:= b:i32:-1=1 | | | y:u8:4 | 13
qlinear_conv_fixed QLinearConv x:u8:-1,1,-1,-1=1,1,8,8 s z w s z s z | s:f: z:u8: w:u8:1,1,3,3 | | y:u8:4 | 13
qlinear_matmul QLinearMatMul a:u8:-1,-1=2,3 s z b:u8:-1,-1=3,2 s z s z | s:f: z:u8: | | y:u8:2 | 13
qlinear_matmul_scales QLinearMatMul a:u8:-1,-1=2,3 s:f:-1=1 z:u8:-1=1 b:u8:-1,-1=3,2 t:f:-1=2 u:u8:-1=2 v:f:= r:u8:= | | | y:u8:2 | 13
dynamic_quantize DynamicQuantizeLinear x:f:-1,-1=2,3 | | | y:u8:2,s,z | 13
string_split StringSplit x:s:-1=2 | | delimiter=a | y:s:2,n | 20
string_split_space StringSplit x:s:-1,-1=2,1 | | maxsplit=1 | y:s:3,n | 20
string_concat StringConcat x:s:-1,-1=2,2 y:s:-1,-1=2,2 | | | z:s:2 | 20
string_normalizer StringNormalizer x:s:-1=3 | | case_change_action=LOWER stopwords=[a,b] locale=C | y:s:1 | 13
regex RegexFullMatch x:s:-1,-1=2,2 | | pattern='[ab]*c' | y:b:2 | 20
tfidf TfIdfVectorizer x:i:-1,-1=2,6 | | mode=TF min_gram_length=1 max_gram_length=2 max_skip_count=2 ngram_counts=[0,2] ngram_indexes=[0,1,2] pool_int64s=[2,3,5,4] | y:f:2 | 13
tfidf_text TfIdfVectorizer x:s:-1=6 | | mode=IDF min_gram_length=1 max_gram_length=2 max_skip_count=5 ngram_counts=[0,2] ngram_indexes=[0,1,2] pool_strings=[a,b,c,d] | y:f:1 | 13
tfidf32 TfIdfVectorizer x:i32:-1=6 | | mode=TFIDF min_gram_length=2 max_gram_length=2 max_skip_count=1 ngram_counts=[0,0] ngram_indexes=[0,1] pool_int64s=[2,3,5,4] | y:f:1 | 13
shift BitShift x:u64:-1=2@7 n:u64:-1=2@2 | | direction=LEFT | y:u64:1 | 13
shift_right BitShift x:u8:-1=2@7 n:u8:-1=2@2 | | direction=RIGHT | y:u8:1 | 13
shift32 BitShift x:u32:-1=2@7 n:u32:-1=2@2 | | direction=RIGHT | y:u32:1 | 13
bit_and BitwiseAnd a:i:-1,-1=2,2 b:i:-1,-1=2,2 | | | y:i:2 | 18
bit_not BitwiseNot a:i32:-1,-1=2,2 | | | y:i32:2 | 18
upsample Upsample x:f:-1,-1,-1,-1=1,1,4,4 s:f:4=4 | | mode=nearest | y:f:4 | 9
upsample_linear Upsample x:f:-1,-1,-1,-1=1,1,4,4 s:f:4=4 | | mode=linear | y:f:4 | 9
resize_cubic Resize x:f:-1,-1,-1,-1=1,1,4,4 _ s:f:4=4 | | mode=cubic | y:f:4 | 13
resize_crop Resize x:f:-1,-1,-1,-1=1,1,4,4 r:f:8=8 s:f:4=4 | | coordinate_transformation_mode=tf_crop_and_resize mode=linear | y:f:4 | 13
resize_antialias Resize x:f:-1,-1,-1,-1=1,1,4,4 _ s:f:4=4 | | antialias=1 mode=linear | y:f:4 | 18
resize_antialias_cubic Resize x:f:-1,-1,-1,-1=1,1,4,4 _ _ n:i:4=4@1 | | antialias=1 mode=cubic | y:f:4 | 18
resize_u8 Resize x:u8:-1,-1,-1,-1=1,1,4,4 _ _ n:i:4=4@1 | | mode=linear | y:u8:4 | 18
lp_pool LpPool x:f:-1,-1,-1,-1=1,1,8,8 | | kernel_shape=[2,2] p=2 | y:f:4 | 13
global_lp GlobalLpPool x:f:-1,-1,-1,-1=1,1,8,8 | | | y:f:4 | 13
global_max GlobalMaxPool x:f:-1,-1,-1,-1=1,1,8,8 | | | y:f:4 | 13
lp_norm LpNormalization x:f:-1,-1=3,3 | | | y:f:2 | 13
roi_pool MaxRoiPool x:f:-1,-1,-1,-1=2,1,8,8 r:f:-1,5=2,5 | | pooled_shape=[2,2] | y:f:4 | 13
deform DeformConv x:f:-1,-1,-1,-1=1,1,4,4 w:f:-1,-1,-1,-1=1,1,2,2 o:f:-1,-1,-1,-1=1,8,3,3 | | | y:f:4 | 19
deform_fixed DeformConv x:f:-1,1,-1,-1=1,1,4,4 w o:f:-1,8,-1,-1=1,8,3,3 | w:f:1,1,2,2 | | y:f:4 | 22
hardmax Hardmax x:f:-1,-1=2,3 | | | y:f:2 | 13
hardmax_axis Hardmax x:f:-1,-1,-1=2,3,4 | | axis=1 | y:f:3 | 13
log_softmax LogSoftmax x:f:-1,-1=2,3 | | | y:f:2 | 13
log_softmax_axis LogSoftmax x:f:-1,-1,-1=2,3,4 | | axis=1 | y:f:3 | 13
softmax_old Softmax x:f:-1,-1,-1=2,3,4 | | axis=1 | y:f:3 | 11
group_norm GroupNormalization x:f:-1,4,-1=1,4,4 s b | s:f:4 b:f:4 | num_groups=2 | y:f:3 | 21
group_norm_open GroupNormalization x:f:-1,-1,-1=1,4,4 s:f:-1=4 b:f:-1=4 | | num_groups=2 | y:f:3 | 21
batch_norm BatchNormalization x:f:-1,-1,-1=1,4,4 s:f:-1=4 b:f:-1=4 m:f:-1=4 v:f:-1=4 | | | y:f:3 | 15
batch_norm_fixed BatchNormalization x:f:-1,4,-1,-1=1,4,4,4 s b m v | s:f:4 b:f:4 m:f:4 v:f:4 | | y:f:4 | 15
lrn LRN x:f:-1,-1,-1,-1=1,4,4,4 | | size=3 | y:f:4 | 13
mvn MeanVarianceNormalization x:f:-1,-1,-1,-1=1,4,4,4 | | axes=[0,2,3] | y:f:4 | 13
rms_norm RMSNormalization x:f:-1,-1,4=2,3,4 s:f:-1=4 | | | y:f:3 | 23
cast_i64 Cast x:f:-1=3 | | to=7 | y:i:1 | 13
cast_i32 Cast x:f:-1=3 | | to=6 | y:i32:1 | 13
cast_u8 Cast x:f:-1=3 | | to=2 | y:u8:1 | 13
cast_text Cast x:s:-1=3 | | to=1 | y:f:1 | 13
cast_text_int Cast x:s:-1=3 | | to=7 | y:i:1 | 13
cast_to_text Cast x:f:-1=3 | | to=8 | y:s:1 | 13
cast_like CastLike x:f:-1=3 z:i32:-1=1 | | | y:i32:1 | 15
clip Clip x:f:-1,-1=2,3 a:f:=@0 b:f:=@1 | | | y:f:2 | 13
clip_i Clip x:i:-1,-1=2,3 a:i:=@0 b:i:=@1 | | | y:i:2 | 13
gather_1 Gather x:f:-1,-1,-1=4,3,2 n:i:-1,-1=2,2@1 | | axis=1 | y:f:4 | 13
gather_32 Gather x:f:-1,-1=4,6 n:i32:-1=2@1 | | | y:f:2 | 13
gather_0 Gather x:f:-1,-1=4,6 n:i:=@1 | | axis=1 | y:f:1 | 13
gather_text Gather x:s:-1,-1=4,3 n:i:-1=2@1 | | | y:s:2 | 13
gather_text_elements GatherElements x:s:-1,-1=2,2 n:i:-1,-1=1,2@1 | | | y:s:2 | 13
gather_nd_batch GatherND x:f:-1,-1,-1=2,3,4 n:i:-1,-1,1=2,2,1@1 | | batch_dims=1 | y:f:3 | 13
gather_nd_open GatherND x:f:-1,-1,-1=2,3,4 n:i:-1,-1=2,2@1 | | | y:f:2 | 13
gather_nd_text GatherND x:s:-1,-1=2,3 n:i:-1,2=2,2@1 | | | y:s:1 | 13
scatter_text ScatterElements x:s:-1,-1=2,2 n:i:-1,-1=1,2@1 u:s:-1,-1=1,2 | | | y:s:2 | 13
scatter_add ScatterElements x:f:-1,-1=2,2 n:i:-1,-1=1,2@1 u:f:-1,-1=1,2 | | axis=1 reduction=add | y:f:2 | 16
scatter_old Scatter x:f:-1,-1=2,2 n:i:-1,-1=1,2@1 u:f:-1,-1=1,2 | | | y:f:2 | 10
scatter_nd_add ScatterND x:f:-1,-1=2,2 n:i:-1,2=1,2@1 u:f:-1=1 | | reduction=add | y:f:2 | 16
scatter_nd_max ScatterND x:i:-1,-1,-1=2,2,2 n:i:-1,-1,-1=1,1,2@1 u:i:-1,-1,-1=1,1,2 | | reduction=max | y:i:3 | 18
where Where c:b:-1,-1=2,3 a:f:-1,-1=2,3 b:f:-1,-1=2,3 | | | y:f:2 | 13
minimum Min a:f:-1,-1=2,3 b:f:-1,-1=2,3 | | | y:f:2 | 13
maximum Max a:i:-1,-1=2,3 b:i:-1,-1,-1=2,2,3 | | | y:i:3 | 13
mean Mean a:f:-1,-1=2,3 b:f:-1,-1=2,3 | | | y:f:2 | 13
sum3 Sum a:f:-1,-1=2,3 b:f:-1,-1=2,3 c:f:-1=3 | | | y:f:2 | 13
equal Equal a:i:-1,-1=2,3 b:i:-1,-1=2,3 | | | y:b:2 | 13
equal_text Equal a:s:-1,-1=2,3 b:s:-1,-1=2,3 | | | y:b:2 | 19
prelu PRelu a:f:-1,-1=2,3 b:f:-1,-1=2,3 | | | y:f:2 | 16
add_bcast Add a:i:-1,-1=2,3 b:i:-1,-1=2,3 | | | y:i:2 | 14
mul_i32 Mul a:i32:-1,-1=2,3 b:i32:-1,-1=2,3 | | | y:i32:2 | 14
abs_i Abs a:i:-1=2 | | | y:i:1 | 13
neg_i Neg a:i32:-1=2 | | | y:i32:1 | 13
div_u8 Div a:u8:-1=2@7 b:u8:-1=2@2 | | | y:u8:1 | 14
div_i8 Div a:i8:-1=2@7 b:i8:-1=2@2 | | | y:i8:1 | 14
div_i16 Div a:i16:-1=2@7 b:i16:-1=2@2 | | | y:i16:1 | 14
div_u64 Div a:u64:-1=2@7 b:u64:-1=2@2 | | | y:u64:1 | 14
mod_u32 Mod a:u32:-1=2@7 b:u32:-1=2@2 | | | y:u32:1 | 13
mod_i16 Mod a:i16:-1=2@7 b:i16:-1=2@2 | | | y:i16:1 | 13
mod_fmod Mod a:i:-1=2@7 b:i:-1=2@2 | | fmod=1 | y:i:1 | 13
pow_i32 Pow a:i32:-1=2@7 b:i:-1=2@2 | | | y:i32:1 | 15
pow_fi Pow a:f:-1=2 b:i:-1=2@2 | | | y:f:1 | 15
reduce_mean_i ReduceMean x:i32:-1,-1=2,3 a:i:1=1@0 | | | y:i32:2 | 18
reduce_mean_axes ReduceMean x:f:-1,-1,-1=2,3,2 a:i:-1=1@0 | | keepdims=0 | y:f:2 | 18
reduce_prod ReduceProd x:i:-1,-1=2,3 a:i:-1=1@0 | | | y:i:2 | 18
reduce_lse ReduceLogSumExp x:f:-1,-1=2,3 a:i:-1=1@0 | | noop_with_empty_axes=1 | y:f:2 | 18
reduce_min_axes ReduceMin x:f:-1,-1,-1=2,3,2 a:i:-1=1@0 | | | y:f:3 | 20
blackman BlackmanWindow n:i:=@8 | | | y:f:1 | 17
hamming HammingWindow n:i32:=@8 | | periodic=0 | y:f:1 | 17
random_like RandomNormalLike x:f:-1,-1=2,3 | | | y:f:2 | 13
uniform_like RandomUniformLike x:f:-1,-1=2,3 | | | y:f:2 | 13
rotary RotaryEmbedding x:f:-1,-1,-1,-1=1,2,3,4 c:f:-1,-1=8,2 s:f:-1,-1=8,2 p:i:-1,-1=1,3@1 | | | y:f:4 | 23
rotary_fixed RotaryEmbedding x:f:-1,2,-1,4=1,2,3,4 c s p:i:-1,-1=1,3@1 | c:f:8,2 s:f:8,2 | | y:f:4 | 23
rotary_3d RotaryEmbedding x:f:-1,-1,-1=1,3,8 c:f:-1,-1,-1=1,3,2 s:f:-1,-1,-1=1,3,2 | | num_heads=2 | y:f:3 | 23
rotary_partial RotaryEmbedding x:f:-1,-1,-1=1,3,8 c:f:-1,-1=8,1 s:f:-1,-1=8,1 p:i:-1,-1=1,3@1 | | num_heads=2 rotary_embedding_dim=2 interleaved=1 | y:f:3 | 23
attention_mask Attention q:f:-1,-1,-1,-1=1,2,2,4 k:f:-1,-1,-1,-1=1,2,2,4 v:f:-1,-1,-1,-1=1,2,2,4 m:f:-1,-1=2,2 | | | y:f:4 | 23
attention_causal Attention q:f:-1,-1,-1=1,2,8 k:f:-1,-1,-1=1,2,8 v:f:-1,-1,-1=1,2,8 | | is_causal=1 q_num_heads=2 kv_num_heads=2 | y:f:3 | 23
attention_bool Attention q:f:-1,-1,-1,-1=1,2,2,4 k:f:-1,-1,-1,-1=1,2,2,4 v:f:-1,-1,-1,-1=1,2,2,4 m:b:-1,-1=2,2 | | softcap=2.0 | y:f:4 | 24
attention_past Attention q:f:-1,-1,-1,-1=1,2,2,4 k:f:-1,-1,-1,-1=1,2,2,4 v:f:-1,-1,-1,-1=1,2,2,4 m:f:-1,-1=2,4 a:f:-1,-1,-1,-1=1,2,2,4 b:f:-1,-1,-1,-1=1,2,2,4 | | | y:f:4,pk,pv | 23
attention_nonpad Attention q:f:-1,-1,-1,-1=1,2,2,4 k:f:-1,-1,-1,-1=1,2,2,4 v:f:-1,-1,-1,-1=1,2,2,4 m:f:-1,-1=2,2 _ _ n:i:-1=1@2 | | | y:f:4 | 24
attention_nonpad_causal Attention q:f:-1,-1,-1,-1=1,2,2,4 k:f:-1,-1,-1,-1=1,2,2,4 v:f:-1,-1,-1,-1=1,2,2,4 _ _ _ n:i:-1=1@2 | | is_causal=1 | y:f:4 | 24
tensor_scatter TensorScatter x:f:-1,-1,-1,-1=1,2,4,4 u:f:-1,-1,-1,-1=1,2,2,4 n:i:-1=1@1 | | | y:f:4 | 24
tensor_scatter_3 TensorScatter x:f:-1,-1,-1=2,4,4 u:f:-1,-1,-1=2,2,4 n:i:-1=2@1 | | axis=1 mode=circular | y:f:3 | 24
cum_prod CumProd x:f:-1,-1=2,3 a:i:=@1 | | | y:f:2 | 26
cumsum_i32 CumSum x:i:-1,-1=2,3 a:i32:=@1 | | exclusive=1 reverse=1 | y:i:2 | 14
det Det x:f:-1,-1,-1=1,3,3 | | | y:f:1 | 13
dropout Dropout x:f:-1,-1=2,3 r:f:=@0 t:b:= | | | y:f:2 | 13
shrink Shrink x:f:-1,-1=2,3 | | | y:f:2 | 13
flatten Flatten x:f:-1,-1,-1=2,3,4 | | axis=2 | y:f:2 | 13
space_depth SpaceToDepth x:f:-1,-1,-1,-1=1,1,4,4 | | blocksize=2 | y:f:4 | 13
transpose Transpose x:f:-1,-1,-1=2,3,4 | | perm=[2,0,1] | y:f:3 | 13
squeeze_all Squeeze x:f:-1,-1,-1=1,2,1 | | | y:f:1 | 13
split_even Split x:f:-1,-1=6,2 | | axis=0 | y:f:2,z | 13
split_outputs Split x:f:-1,-1=6,2 | | axis=0 num_outputs=2 | y:f:2,z | 18
pad_edge Pad x:f:-1,-1=3,6 p:i:4=4@1 | | mode=edge | y:f:2 | 13
pad_reflect Pad x:f:-1,-1=3,6 p:i:4=4@1 | | mode=reflect | y:f:2 | 13
pad_wrap Pad x:f:-1,-1=3,6 p:i:4=4@1 | | mode=wrap | y:f:2 | 19
pad_axes Pad x:f:-1,-1=3,6 p:i:2=2@1 v:f:= a:i:1=1@1 | | | y:f:2 | 18
argmin ArgMin x:f:-1,-1=2,3 | | select_last_index=1 | y:i:2 | 13
unique_flat Unique x:f:-1,-1=4,2 | | | y:f:1,i,j,c | 13
unique_sorted Unique x:i:-1,-1=4,2 | | axis=1 sorted=0 | y:i:2,i,j,c | 13
unique_text Unique x:s:-1=4 | | | y:s:1,i,j,c | 13
topk_small TopK x:f:-1,-1=2,5 k:i:1=1@2 | | axis=0 largest=0 sorted=0 | y:f:2,i | 13
topk_i TopK x:i:-1,-1=2,5 k:i:1=1@2 | | | y:i:2,i | 13
quantize_block QuantizeLinear x:f:-1,-1=2,4 s:f:-1,-1=2,2 z:u8:-1,-1=2,2 | | axis=1 block_size=2 | y:u8:2 | 21
dequantize_block DequantizeLinear x:u8:-1,-1=2,4 s:f:-1,-1=2,2 z:u8:-1,-1=2,2 | | axis=1 block_size=2 | y:f:2 | 21
dequantize_scalar DequantizeLinear x:u8:-1,-1=2,4 s:f:= z:u8:= | | | y:f:2 | 13
matmul_integer_zero MatMulInteger a:u8:-1,-1=2,3 b:u8:-1,-1=3,2 z:u8:-1=1 u:u8:-1=1 | | | y:i32:2 | 13
matmul_integer_fixed MatMulInteger a:u8:-1,-1=2,3 b z:u8:-1=1 | b:u8:3,2 | | y:i32:2 | 13
conv_integer_zero ConvInteger x:u8:-1,-1,-1,-1=1,1,8,8 w:u8:-1,-1,-1,-1=1,1,3,3 z:u8:=@1 u:u8:-1=1 | | | y:i32:4 | 13
matmul_1d MatMul a:f:-1=3 b:f:-1,-1,-1=2,3,2 | | | y:f:2 | 13
matmul_fixed MatMul a:f:-1,-1,3=2,2,3 b | b:f:3,2 | | y:f:3 | 13
gemm_bias Gemm a:f:-1,-1=2,3 b:f:-1,-1=3,2 c:f:-1,-1=2,2 | | transA=0 | y:f:2 | 13
gemm_trans Gemm a:f:-1,-1=3,2 b:f:-1,-1=2,3 c:f:-1=2 | | transA=1 transB=1 | y:f:2 | 13
conv3 Conv x:f:-1,-1,-1,-1,-1=1,1,4,4,4 w:f:-1,-1,-1,-1,-1=1,1,2,2,2 | | | y:f:5 | 13
conv_group Conv x:f:-1,-1,-1,-1=1,4,8,8 w:f:-1,-1,-1,-1=4,1,3,3 b:f:-1=4 | | group=4 | y:f:4 | 13
conv_bias_fixed Conv x:f:-1,16,-1,-1=1,16,8,8 w b | w:f:16,16,3,3 b:f:16 | auto_pad=SAME_UPPER strides=[2,2] | y:f:4 | 13
deconv_fixed ConvTranspose x:f:-1,1,-1,-1=1,1,8,8 w | w:f:1,1,3,3 | strides=[2,2] | y:f:4 | 13
deconv_shape ConvTranspose x:f:-1,1,-1,-1=1,1,4,4 w | w:f:1,1,3,3 | output_shape=[4,4] | y:f:4 | 13
max_pool_indices MaxPool x:f:-1,-1,-1,-1=1,1,8,8 | | kernel_shape=[2,2] ceil_mode=1 dilations=[2,2] | y:f:4,i | 13
max_pool_u8 MaxPool x:u8:-1,-1,-1,-1=1,1,8,8 | | kernel_shape=[2,2] | y:u8:4 | 13
max_pool_3 MaxPool x:f:-1,-1,-1,-1,-1=1,1,4,4,4 | | kernel_shape=[2,2,2] pads=[1,1,1,1,1,1] | y:f:5 | 13
average_pad AveragePool x:f:-1,-1,-1,-1=1,1,8,8 | | kernel_shape=[3,3] count_include_pad=1 ceil_mode=1 pads=[1,1,1,1] | y:f:4 | 19
average_dilated AveragePool x:f:-1,-1,-1=1,1,8 | | kernel_shape=[3] dilations=[2] | y:f:3 | 19
unpool_plain MaxUnpool x:f:1,1,-1,-1=1,1,2,2 n:i:1,1,-1,-1=1,1,2,2@3 | | kernel_shape=[2,2] strides=[2,2] | y:f:4 | 13
unpool_open MaxUnpool x:f:-1,-1,-1,-1=1,1,2,2 n:i:-1,-1,-1,-1=1,1,2,2@3 s:i:-1=4@4 | | kernel_shape=[2,2] | y:f:4 | 13
roi_align_max RoiAlign x:f:-1,-1,-1,-1=1,1,8,8 r:f:-1,4=2,4 b:i:-1=2@0 | | output_height=2 output_width=2 mode=max | y:f:4 | 16
roi_align_old RoiAlign x:f:-1,-1,-1,-1=1,1,8,8 r:f:-1,-1=2,4 b:i:-1=2@0 | | sampling_ratio=2 spatial_scale=0.5 | y:f:4 | 10
suppress_thresholds NonMaxSuppression b:f:-1,-1,4=1,3,4 s:f:-1,-1,-1=1,1,3 m:i:1=1@2 t:f:1=1 u:f:1=1 | | center_point_box=1 | y:i:2 | 13
reverse_axes ReverseSequence x:f:-1,-1,-1=4,2,2 l:i:-1=4@2 | | batch_axis=0 time_axis=1 | y:f:3 | 13
grid_sample_3 GridSample x:f:-1,-1,-1,-1,-1=1,1,3,3,3 g:f:-1,-1,-1,-1,3=1,2,2,2,3 | | mode=nearest padding_mode=reflection | y:f:5 | 20
grid_sample_cubic GridSample x:f:-1,-1,-1,-1=1,1,4,4 g:f:-1,-1,-1,2=1,3,3,2 | | mode=cubic padding_mode=border | y:f:4 | 20
grid_sample_border GridSample x:f:-1,-1,-1,-1=1,1,4,4 g:f:-1,-1,-1,2=1,3,3,2 | | padding_mode=border align_corners=1 | y:f:4 | 16
grid_sample_reflect GridSample x:f:-1,-1,-1,-1=1,1,4,4 g:f:-1,-1,-1,2=1,3,3,2 | | padding_mode=reflection | y:f:4 | 16
dft_inverse DFT x:f:-1,-1,2=1,16,2 n:i:1=1@16 a:i:=@1 | | inverse=1 | y:f:3 | 20
dft_axis DFT x:f:-1,-1,-1,1=1,4,16,1 n:i:=@16 a:i:=@-2 | | onesided=1 | y:f:4 | 20
stft_window STFT x:f:-1,-1,1=1,64,1 step:i:=@8 w:f:-1=16 n:i:=@16 | | | y:f:4 | 17
stft_window_only STFT x:f:-1,-1,1=1,64,1 step:i:=@8 w:f:-1=16 | | | y:f:4 | 17
center_crop_axes CenterCropPad x:f:-1,-1=4,4 s:i:-1=1@2 | | axes=[1] | y:f:2 | 18
slice_one Slice x:f:-1,-1=4,6 a:i:-1=1@0 b:i:-1=1@2 c:i:-1=1@1 d:i:-1=1@-1 | | | y:f:2 | 13
slice_32 Slice x:f:-1,-1=4,6 a:i32:-1=1@0 b:i32:-1=1@2 c:i32:-1=1@1 d:i32:-1=1@1 | | | y:f:2 | 13
range_f Range a:f:=@0 b:f:=@5 c:f:=@1 | | | y:f:1 | 13
range_i32 Range a:i32:=@0 b:i32:=@5 c:i32:=@1 | | | y:i32:1 | 13
one_hot_f OneHot x:f:-1=2 d:f:=@4 v:f:2=2 | | | y:f:2 | 13
lstm_bi LSTM x:f:-1,-1,3=2,2,3 w r b l:i32:-1=2@2 h:f:2,-1,4=2,2,4 c:f:2,-1,4=2,2,4 | w:f:2,16,3 r:f:2,16,4 b:f:2,32 | hidden_size=4 direction=bidirectional | y:f:4,g,e | 14
gru_reverse GRU x:f:-1,-1,3=2,2,3 w r b l:i32:-1=2@2 h:f:1,-1,4=1,2,4 | w:f:1,12,3 r:f:1,12,4 b:f:1,24 | hidden_size=4 direction=reverse | y:f:4,g | 14
rnn_bi RNN x:f:-1,-1,3=2,2,3 w r _ l:i32:-1=2@2 h:f:2,-1,4=2,2,4 | w:f:2,4,3 r:f:2,4,4 | hidden_size=4 direction=bidirectional | y:f:4,g | 14
lstm_weights LSTM x:f:-1,-1,-1=2,2,3 w:f:-1,-1,-1=1,16,3 r:f:-1,-1,-1=1,16,4 | | hidden_size=4 | y:f:4 | 14
trilu_f Trilu x:f:-1,-1,-1=2,3,3 k:i:1=1@0 | | upper=0 | y:f:3 | 14
eye_k EyeLike x:f:-1,-1=3,3 | | k=2 | y:f:2 | 13
nonzero_0 NonZero x:b:-1,-1=3,3 | | | y:i:2 | 13
compress_flat Compress x:f:-1,-1=3,3 c:b:-1=3 | | | y:f:1 | 13
multinomial_big Multinomial x:f:-1,-1=2,3 | | sample_size=64 | y:i32:2 | 13
layer_norm_axis LayerNormalization x:f:-1,-1,-1=2,3,4 s:f:-1,-1=3,4 b:f:-1,-1=3,4 | | axis=1 | y:f:3 | 17
instance_norm_open InstanceNormalization x:f:-1,-1,-1=1,3,4 s:f:-1=3 b:f:-1=3 | | | y:f:3 | 13
isinf IsInf x:f:-1=3 | | | y:b:1 | 13
gelu Gelu x:f:-1,-1=3,3 | | approximate=tanh | y:f:2 | 20
expand_more Expand x:f:-1,-1=2,1 n:i:-1=3@2 | | | y:f:3 | 13
tile_i32 Tile x:i32:-1,-1=2,2 n:i:-1=2@2 | | | y:i32:2 | 13
reshape_text Reshape x:s:-1,-1=2,3 n:i:-1=1@6 | | | y:s:1 | 13
concat_text Concat a:s:-1,-1=2,3 b:s:-1,-1=2,3 | | axis=1 | y:s:2 | 13
identity_text Identity a:s:-1,-1=2,3 | | | y:s:2 | 13
where_text Where c:b:-1,-1=2,3 a:s:-1,-1=2,3 b:s:-1,-1=2,3 | | | y:s:2 | 13
affine_grid_open AffineGrid t:f:-1,-1,-1=1,2,3 s:i:-1=4@1 | | | y:f:4 | 20
col2im_dilated Col2Im x:f:-1,-1,-1=1,4,4 a:i:-1=2@4 b:i:-1=2@2 | | strides=[2,2] dilations=[1,1] | y:f:4 | 18
roi_pool_open MaxRoiPool x:f:-1,-1,-1,-1=2,1,8,8 r:f:-1,-1=2,5 | | pooled_shape=[2,2] spatial_scale=0.5 | y:f:4 | 13
";
