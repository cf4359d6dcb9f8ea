//! More models of hostile requests: operators of `ai.onnx.ml`, and those of ONNX Runtime's own domain, which its tools
//! write.

/// In the form of `cases::of_lines`.
pub const LINES: &str = "
array_features ml:ArrayFeatureExtractor x:f:-1,-1=2,4 n:i:-1=2@1 | | | y:f:2 | 13
array_features_1 ml:ArrayFeatureExtractor x:i:-1=4 n:i:1,-1=1,2@1 | | | y:i:2 | 13
array_features_text ml:ArrayFeatureExtractor x:s:-1,-1=2,4 n:i:-1=2@1 | | | y:s:2 | 13
binarizer ml:Binarizer x:f:-1,-1=2,4 | | threshold=0.5 | y:f:2 | 13
categories ml:CategoryMapper x:s:-1,-1=2,4 | | cats_int64s=[1,2] cats_strings=[a,b] | y:i:2 | 13
categories_text ml:CategoryMapper x:i:-1,-1=2,4 | | cats_int64s=[1,2] cats_strings=[a,b] | y:s:2 | 13
labels ml:LabelEncoder x:s:-1,-1=2,4 | | keys_strings=[a,b] values_int64s=[1,2] | y:i:2 | 13
labels_text ml:LabelEncoder x:i:-1,-1=2,4 | | keys_int64s=[1,2] values_strings=[a,b] | y:s:2 | 13
one_hot_encoder ml:OneHotEncoder x:i:-1,-1=2,4 | | cats_int64s=[1,2,3] | y:f:3 | 13
one_hot_encoder_strict ml:OneHotEncoder x:s:-1=2 | | cats_strings=[a,b] zeros=0 | y:f:2 | 13
one_hot_encoder_f ml:OneHotEncoder x:f:-1=2 | | cats_int64s=[1,2,3] | y:f:2 | 13
imputer ml:Imputer x:f:-1,-1=2,3 | | imputed_value_floats=[1.0,2.0,3.0] replaced_value_float=0.0 | y:f:2 | 13
imputer_i ml:Imputer x:i:-1,-1=2,3 | | imputed_value_int64s=[1,2,3] replaced_value_int64=0 | y:i:2 | 13
scaler ml:Scaler x:f:-1,-1=2,3 | | scale=[1.0,2.0,3.0] offset=[1.0,2.0,3.0] | y:f:2 | 13
scaler_one ml:Scaler x:i:-1,-1=2,3 | | scale=[1.0] offset=[1.0] | y:f:2 | 13
normalizer ml:Normalizer x:f:-1,-1=2,3 | | norm=L1 | y:f:2 | 13
normalizer_max ml:Normalizer x:i:-1,-1=2,3 | | norm=MAX | y:f:2 | 13
normalizer_1 ml:Normalizer x:f:-1=3 | | norm=L2 | y:f:1 | 13
features ml:FeatureVectorizer a:f:-1,-1=2,3 b:f:-1,-1=2,2 | | inputdimensions=[3,2] | y:f:2 | 13
features_i ml:FeatureVectorizer a:i:-1,-1=2,3 b:i:-1,-1=2,2 | | inputdimensions=[3,2] | y:f:2 | 13
linear_regressor ml:LinearRegressor x:f:-1,-1=2,3 | | coefficients=[1.0,2.0,3.0] intercepts=[1.0] | y:f:2 | 13
linear_regressor_2 ml:LinearRegressor x:f:-1,-1=2,3 | | coefficients=[1.0,2.0,3.0,1.0,2.0,3.0] intercepts=[1.0,2.0] targets=2 post_transform=SOFTMAX | y:f:2 | 13
linear_classifier ml:LinearClassifier x:f:-1,-1=2,3 | | coefficients=[1.0,2.0,3.0,1.0,2.0,3.0] intercepts=[1.0,2.0] classlabels_ints=[0,1] post_transform=SOFTMAX | y:i:1,z | 13
linear_classifier_text ml:LinearClassifier x:i:-1,-1=2,3 | | coefficients=[1.0,2.0,3.0] intercepts=[1.0] classlabels_strings=[a,b] | y:s:1,z | 13
linear_classifier_1d ml:LinearClassifier x:f:-1=3 | | coefficients=[1.0,2.0,3.0,1.0,2.0,3.0] intercepts=[1.0,2.0] classlabels_ints=[0,1] | y:i:1,z | 13
svm_regressor ml:SVMRegressor x:f:-1,-1=2,3 | | coefficients=[1.0,2.0] support_vectors=[1.0,2.0,3.0,4.0,5.0,6.0] n_supports=2 rho=[0.5] kernel_type=RBF kernel_params=[0.5,0.0,3.0] | y:f:2 | 13
svm_regressor_linear ml:SVMRegressor x:f:-1,-1=2,3 | | coefficients=[1.0,2.0,3.0] n_supports=0 rho=[0.5] kernel_type=LINEAR kernel_params=[0.5,0.0,3.0] | y:f:2 | 13
svm_classifier ml:SVMClassifier x:f:-1,-1=2,3 | | coefficients=[1.0,-1.0] support_vectors=[1.0,2.0,3.0,4.0,5.0,6.0] vectors_per_class=[1,1] rho=[0.5] kernel_type=RBF kernel_params=[0.5,0.0,3.0] classlabels_ints=[0,1] prob_a=[1.0] prob_b=[0.5] | y:i:1,z | 13
svm_classifier_linear ml:SVMClassifier x:f:-1,-1=2,3 | | coefficients=[1.0,2.0,3.0,1.0,2.0,3.0] rho=[0.5] kernel_type=LINEAR kernel_params=[0.5,0.0,3.0] classlabels_ints=[0,1] | y:i:1,z | 13
tree_regressor ml:TreeEnsembleRegressor x:f:-1,-1=2,3 | | n_targets=1 nodes_treeids=[0,0,0] nodes_nodeids=[0,1,2] nodes_featureids=[2,0,0] nodes_modes=[BRANCH_LEQ,LEAF,LEAF] nodes_values=[0.5,0.0,0.0] nodes_truenodeids=[1,0,0] nodes_falsenodeids=[2,0,0] target_treeids=[0,0] target_nodeids=[1,2] target_ids=[0,0] target_weights=[1.0,2.0] | y:f:2 | 13
tree_classifier ml:TreeEnsembleClassifier x:f:-1,-1=2,3 | | classlabels_int64s=[0,1] class_ids=[0,1] class_nodeids=[1,2] class_treeids=[0,0] class_weights=[1.0,1.0] nodes_treeids=[0,0,0] nodes_nodeids=[0,1,2] nodes_featureids=[2,0,0] nodes_modes=[BRANCH_LEQ,LEAF,LEAF] nodes_values=[0.5,0.0,0.0] nodes_truenodeids=[1,0,0] nodes_falsenodeids=[2,0,0] | y:i:1,z | 13
ms_attention ms:Attention x:f:-1,-1,8=1,2,8 w b | w:f:8,24 b:f:24 | num_heads=2 | y:f:3 | 17
ms_attention_mask ms:Attention x:f:-1,-1,8=1,2,8 w b m:i32:-1=1@2 | w:f:8,24 b:f:24 | num_heads=2 | y:f:3 | 17
ms_attention_mask2 ms:Attention x:f:-1,-1,8=1,2,8 w b m:i32:-1,-1=1,2@1 | w:f:8,24 b:f:24 | num_heads=2 unidirectional=1 | y:f:3 | 17
ms_attention_mask3 ms:Attention x:f:-1,-1,8=1,2,8 w b m:i32:-1,-1,-1=1,2,2@1 | w:f:8,24 b:f:24 | num_heads=2 | y:f:3 | 17
ms_attention_past ms:Attention x:f:-1,-1,8=1,2,8 w b m:i32:-1,-1=1,4@1 p:f:2,-1,2,-1,4=2,1,2,2,4 | w:f:8,24 b:f:24 | num_heads=2 unidirectional=1 | y:f:3,q | 17
ms_attention_open ms:Attention x:f:-1,-1,-1=1,2,8 w:f:-1,-1=8,24 b:f:-1=24 | | num_heads=2 | y:f:3 | 17
mha ms:MultiHeadAttention q:f:-1,-1,-1=1,2,8 k:f:-1,-1,-1=1,2,8 v:f:-1,-1,-1=1,2,8 | | num_heads=2 | y:f:3 | 17
mha_mask ms:MultiHeadAttention q:f:-1,-1,8=1,2,8 k:f:-1,-1,8=1,2,8 v:f:-1,-1,8=1,2,8 b m:i32:-1=1@2 | b:f:24 | num_heads=2 | y:f:3 | 17
mha_mask2 ms:MultiHeadAttention q:f:-1,-1,8=1,2,8 k:f:-1,-1,8=1,2,8 v:f:-1,-1,8=1,2,8 _ m:i32:-1,-1=1,2@1 | | num_heads=2 | y:f:3 | 17
mha_bias ms:MultiHeadAttention q:f:-1,-1,8=1,2,8 k:f:-1,-1,8=1,2,8 v:f:-1,-1,8=1,2,8 _ _ a:f:-1,-1,-1,-1=1,2,2,2 | | num_heads=2 | y:f:3 | 17
mha_past ms:MultiHeadAttention q:f:-1,-1,8=1,1,8 k:f:-1,-1,8=1,1,8 v:f:-1,-1,8=1,1,8 _ _ _ a:f:-1,-1,-1,-1=1,2,3,4 c:f:-1,-1,-1,-1=1,2,3,4 | | num_heads=2 | y:f:3,g,h | 17
mha_past_length ms:MultiHeadAttention q:f:-1,-1,8=1,1,8 k:f:-1,-1,8=1,1,8 v:f:-1,-1,8=1,1,8 _ _ _ a:f:-1,-1,-1,-1=1,2,6,4 c:f:-1,-1,-1,-1=1,2,6,4 n:i32:1=1@3 | | num_heads=2 | y:f:3,g,h | 17
mha_cross ms:MultiHeadAttention q:f:-1,-1,8=1,1,8 k:f:-1,-1,-1,-1=1,2,3,4 v:f:-1,-1,-1,-1=1,2,3,4 | | num_heads=2 | y:f:3 | 17
mha_cache ms:MultiHeadAttention q:f:-1,-1,8=1,1,8 k:f:-1,-1,8=1,1,8 v:f:-1,-1,8=1,1,8 _ _ _ a:f:-1,-1,-1,-1=1,2,6,4 c:f:-1,-1,-1,-1=1,2,6,4 n:i32:1=1@3 i:i32:-1,-1,-1=1,1,6@0 | | num_heads=2 | y:f:3,g,h | 17
gqa ms:GroupQueryAttention q:f:-1,-1,16=1,1,16 k:f:-1,-1,8=1,1,8 v:f:-1,-1,8=1,1,8 a:f:-1,-1,-1,-1=1,1,4,8 c:f:-1,-1,-1,-1=1,1,4,8 l:i32:-1=1@3 t:i32:1=1@4 | | num_heads=2 kv_num_heads=1 | y:f:3,g,h | 17
gqa_first ms:GroupQueryAttention q:f:-1,-1,16=1,3,16 k:f:-1,-1,8=1,3,8 v:f:-1,-1,8=1,3,8 _ _ l:i32:-1=1@2 t:i32:1=1@3 | | num_heads=2 kv_num_heads=1 | y:f:3,g,h | 17
gqa_rotary ms:GroupQueryAttention q:f:-1,-1,32=1,1,32 k:f:-1,-1,16=1,1,16 v:f:-1,-1,16=1,1,16 a:f:-1,-1,-1,-1=1,1,4,16 c:f:-1,-1,-1,-1=1,1,4,16 l:i32:-1=1@3 t:i32:1=1@4 e s | e:f:8,8 s:f:8,8 | num_heads=2 kv_num_heads=1 do_rotary=1 | y:f:3,g,h | 17
gqa_rotary_open ms:GroupQueryAttention q:f:-1,-1,32=1,1,32 k:f:-1,-1,16=1,1,16 v:f:-1,-1,16=1,1,16 a:f:-1,-1,-1,-1=1,1,4,16 c:f:-1,-1,-1,-1=1,1,4,16 l:i32:-1=1@3 t:i32:1=1@4 e:f:-1,-1=8,8 s:f:-1,-1=8,8 p:i:-1,-1=1,1@3 | | num_heads=2 kv_num_heads=1 do_rotary=1 | y:f:3,g,h | 17
gqa_window ms:GroupQueryAttention q:f:-1,-1,16=1,1,16 k:f:-1,-1,8=1,1,8 v:f:-1,-1,8=1,1,8 a:f:-1,-1,-1,-1=1,1,4,8 c:f:-1,-1,-1,-1=1,1,4,8 l:i32:-1=1@3 t:i32:1=1@4 | | num_heads=2 kv_num_heads=1 local_window_size=2 | y:f:3,g,h | 17
gqa_bias ms:GroupQueryAttention q:f:-1,-1,16=1,1,16 k:f:-1,-1,8=1,1,8 v:f:-1,-1,8=1,1,8 a:f:-1,-1,-1,-1=1,1,4,8 c:f:-1,-1,-1,-1=1,1,4,8 l:i32:-1=1@3 t:i32:1=1@4 _ _ _ b:f:-1,-1,-1,-1=1,2,1,4 | | num_heads=2 kv_num_heads=1 | y:f:3,g,h | 17
gqa_packed ms:GroupQueryAttention q:f:-1,-1,32=1,1,32 _ _ a:f:-1,-1,-1,-1=1,1,4,8 c:f:-1,-1,-1,-1=1,1,4,8 l:i32:-1=1@3 t:i32:1=1@4 | | num_heads=2 kv_num_heads=1 | y:f:3,g,h | 17
dmmha ms:DecoderMaskedMultiHeadAttention q:f:-1,-1,8=1,1,8 k:f:-1,-1,8=1,1,8 v:f:-1,-1,8=1,1,8 m:i32:-1,-1=1,4@1 _ a:f:-1,-1,-1,-1=1,2,6,4 c:f:-1,-1,-1,-1=1,2,6,4 n:i32:1=1@3 w:i32:1=1@1 i:i32:-1,-1,-1=1,1,6@0 | | num_heads=2 past_present_share_buffer=1 | y:f:3,g,h | 17
dmmha_plain ms:DecoderMaskedMultiHeadAttention q:f:-1,-1,8=1,1,8 k:f:-1,-1,8=1,1,8 v:f:-1,-1,8=1,1,8 _ _ a:f:-1,-1,-1,-1=1,2,6,4 c:f:-1,-1,-1,-1=1,2,6,4 n:i32:1=1@3 | | num_heads=2 past_present_share_buffer=1 | y:f:3,g,h | 17
dmmha_cross ms:DecoderMaskedMultiHeadAttention q:f:-1,-1,8=1,1,8 k:f:-1,-1,-1,-1=1,2,6,4 v:f:-1,-1,-1,-1=1,2,6,4 m:i32:-1,-1=1,6@1 | | num_heads=2 | y:f:3 | 17
sparse_attention ms:SparseAttention q:f:-1,-1,32=1,1,32 k:f:-1,-1,16=1,1,16 v:f:-1,-1,16=1,1,16 a:f:-1,-1,-1,-1=1,1,16,16 c:f:-1,-1,-1,-1=1,1,16,16 r:i32:-1,-1=1,2@1 o:i32:-1,-1=1,1@0 t:i32:1=1@4 l:i32:-1=1@4 | | num_heads=2 kv_num_heads=1 sparse_block_size=16 | y:f:3,g,h | 17
embed_norm ms:EmbedLayerNormalization n:i32:-1,-1=1,3@1 s:i32:-1,-1=1,3@1 w p t g b m:i32:-1,-1=1,3@1 | w:f:8,4 p:f:8,4 t:f:2,4 g:f:4 b:f:4 | | y:f:3,i | 17
embed_norm_plain ms:EmbedLayerNormalization n:i32:-1,-1=1,3@1 _ w p _ g b | w:f:8,4 p:f:8,4 g:f:4 b:f:4 | | y:f:3,i | 17
embed_norm_positions ms:EmbedLayerNormalization n:i32:-1,-1=1,3@1 _ w p _ g b _ q:i32:-1,-1=1,3@1 | w:f:8,4 p:f:8,4 g:f:4 b:f:4 | | y:f:3,i | 17
embed_norm_type1 ms:EmbedLayerNormalization n:i32:-1,-1=1,3@1 s:i32:-1,-1=1,3@1 w p t g b m:i32:-1,-1=1,3@1 | w:f:8,4 p:f:8,4 t:f:2,4 g:f:4 b:f:4 | mask_index_type=2 | y:f:3,i | 17
q_embed_norm ms:QEmbedLayerNormalization n:i32:-1,-1=1,3@1 s:i32:-1,-1=1,3@1 w p t g b m:i32:-1,-1=1,3@1 e e e e e z z z z z | w:u8:8,4 p:u8:8,4 t:u8:2,4 g:u8:4 b:u8:4 e:f: z:u8: | | y:f:3,i | 17
ms_rotary ms:RotaryEmbedding x:f:-1,-1,8=1,3,8 p:i:-1,-1=1,3@1 c s | c:f:8,4 s:f:8,4 | | y:f:3 | 17
ms_rotary_offset ms:RotaryEmbedding x:f:-1,-1,8=1,3,8 p:i:1=1@1 c s | c:f:8,4 s:f:8,4 | | y:f:3 | 17
ms_rotary_4d ms:RotaryEmbedding x:f:-1,2,-1,8=1,2,3,8 p:i:-1,-1=1,3@1 c s | c:f:8,4 s:f:8,4 | interleaved=1 | y:f:4 | 17
ms_rotary_open ms:RotaryEmbedding x:f:-1,-1,-1=1,3,8 p:i:-1,-1=1,3@1 c:f:-1,-1=8,4 s:f:-1,-1=8,4 | | | y:f:3 | 17
skip_norm ms:SkipLayerNormalization x:f:-1,-1,-1=1,2,4 s:f:-1,-1,-1=1,2,4 g:f:-1=4 b:f:-1=4 c:f:-1=4 | | | y:f:3 | 17
skip_norm_fixed ms:SkipLayerNormalization x:f:-1,-1,4=1,2,4 s:f:-1,-1,4=1,2,4 g b | g:f:4 b:f:4 | | y:f:3 | 17
skip_rms ms:SkipSimplifiedLayerNormalization x:f:-1,-1,-1=1,2,4 s:f:-1,-1,-1=1,2,4 g:f:-1=4 | | | y:f:3 | 17
simplified_norm SimplifiedLayerNormalization x:f:-1,-1,-1=1,2,4 g:f:-1=4 | | | y:f:3 | 17
bias_gelu ms:BiasGelu x:f:-1,-1=2,4 b:f:-1=4 | | | y:f:2 | 17
fast_gelu ms:FastGelu x:f:-1,-1=2,4 b:f:-1=4 | | | y:f:2 | 17
ms_gelu ms:Gelu x:f:-1,-1=2,4 | | | y:f:2 | 17
quick_gelu ms:QuickGelu x:f:-1,-1=2,4 | | | y:f:2 | 17
bias_gelu_long ms:BiasGelu x:f:-1,-1=2,4000 b:f:-1=4000 | | | y:f:2 | 17
q_attention ms:QAttention x:u8:-1,-1,8=1,2,8 w b s s m:i32:-1=1@2 z z | w:u8:8,24 b:f:24 s:f: z:u8: | num_heads=2 | y:f:3 | 17
q_attention_mask2 ms:QAttention x:u8:-1,-1,8=1,2,8 w b s s m:i32:-1,-1=1,2@1 z z | w:u8:8,24 b:f:24 s:f: z:u8: | num_heads=2 | y:f:3 | 17
q_attention_past ms:QAttention x:u8:-1,-1,8=1,2,8 w b s s m:i32:-1,-1=1,4@1 z z p:f:2,-1,2,-1,4=2,1,2,2,4 | w:u8:8,24 b:f:24 s:f: z:u8: | num_heads=2 unidirectional=1 | y:f:3,q | 17
q_attention_open ms:QAttention x:u8:-1,-1,-1=1,2,8 w:u8:-1,-1=8,24 b:f:-1=24 s:f:-1=1 t:f:-1=1 _ z:u8:-1=1 u:u8:-1=1 | | num_heads=2 | y:f:3 | 17
dynamic_matmul ms:DynamicQuantizeMatMul a:f:-1,-1=2,3 b:u8:-1,-1=3,2 s:f:-1=1 z:u8:-1=1 c:f:-1=2 | | | y:f:2 | 17
dynamic_matmul_fixed ms:DynamicQuantizeMatMul a:f:-1,-1=2,3 b s z c | b:u8:3,2 s:f:2 z:u8:2 c:f:2 | | y:f:2 | 17
matmul_to_float ms:MatMulIntegerToFloat a:u8:-1,-1=2,3 b:u8:-1,-1=3,2 s:f:-1=1 t:f:-1=2 z:u8:-1=1 u:u8:-1=2 c:f:-1=2 | | | y:f:2 | 17
matmul_to_float_fixed ms:MatMulIntegerToFloat a:u8:-1,-1=2,3 b s s z z c | b:u8:3,2 s:f:1 z:u8:1 c:f:2 | | y:f:2 | 17
matmul_16 ms:MatMulInteger16 a:i16:-1,-1=2,3 b:i16:-1,-1=3,2 | | | y:i32:2 | 17
matmul_4 ms:MatMulNBits a:f:-1,-1=2,32 b s | b:u8:8,1,16 s:f:8 | K=32 N=8 bits=4 block_size=32 | y:f:2 | 17
matmul_4_open ms:MatMulNBits a:f:-1,-1=2,32 b:u8:-1,-1,-1=8,1,16 s:f:-1=8 z:u8:-1=8 | | K=32 N=8 bits=4 block_size=32 | y:f:2 | 17
matmul_4_order ms:MatMulNBits a:f:-1,-1=2,32 b s z g:i32:-1=32@0 | b:u8:8,1,16 s:f:8 z:u8:8 | K=32 N=8 bits=4 block_size=32 | y:f:2 | 17
matmul_4_bias ms:MatMulNBits a:f:-1,-1=2,32 b s z _ c:f:8=8 | b:u8:8,1,16 s:f:8 z:u8:8 | K=32 N=8 bits=4 block_size=32 | y:f:2 | 17
matmul_8_int8 ms:MatMulNBits a:f:-1,-1,32=1,2,32 b s z | b:u8:8,1,32 s:f:8 z:u8:8 | K=32 N=8 bits=8 block_size=32 accuracy_level=4 | y:f:3 | 17
matmul_bnb ms:MatMulBnb4 a:f:-1,-1=2,32 b s | b:u8:128 s:f:8 | K=32 N=8 block_size=32 quant_type=1 | y:f:2 | 17
matmul_bnb_open ms:MatMulBnb4 a:f:-1,-1=2,32 b:u8:-1=128 s:f:-1=8 | | K=32 N=8 block_size=32 quant_type=1 | y:f:2 | 17
gather_quantized ms:GatherBlockQuantized d n:i:-1,-1=2,3@1 s | d:u8:8,16 s:f:8,1 | block_size=32 quantize_axis=1 gather_axis=0 bits=4 | y:f:3 | 17
gather_quantized_open ms:GatherBlockQuantized d:u8:-1,-1=8,16 n:i32:-1=2@1 s:f:-1,-1=8,1 | | block_size=32 quantize_axis=1 gather_axis=0 bits=4 | y:f:2 | 17
crop_resize ms:CropAndResize x:f:-1,-1,-1,-1=1,1,8,8 r:f:-1,4=2,4 b:i32:-1=2@0 s:i32:2=2@2 | | | y:f:4 | 17
crop_resize_nearest ms:CropAndResize x:f:-1,-1,-1,-1=1,1,8,8 r:f:-1,-1=2,4 b:i32:-1=2@0 s:i32:-1=2@2 | | mode=nearest extrapolation_value=1.0 | y:f:4 | 17
expand_dims ms:ExpandDims x:f:-1,-1=2,3 a:i32:=@0 | | | y:f:3 | 17
ms_range ms:Range a:i:=@0 b:i:=@5 c:i:=@1 | | | y:i:1 | 17
ms_range_i32 ms:Range a:i32:=@0 b:i32:=@5 | | | y:i32:1 | 17
ms_range_f ms:Range a:f:=@0 b:f:=@5 c:f:=@1 | | | y:f:1 | 17
ms_pad ms:Pad x:f:-1,-1=3,6 p:i:-1=4@1 v:f:1=1 | | | y:f:2 | 17
ms_pad_reflect ms:Pad x:f:-1,-1=3,6 p:i:-1=4@1 | | mode=reflect | y:f:2 | 17
ms_unique ms:Unique x:f:-1=4 | | | y:f:1,i,c | 17
tokenizer ms:Tokenizer x:s:-1=2 | | mark=1 mincharnum=1 pad_value=p separators=[a] | y:s:2 | 17
tokenizer_chars ms:Tokenizer x:s:-1,-1=2,2 | | mark=0 mincharnum=1 pad_value=p separators=[''] | y:s:3 | 17
tokenizer_regex ms:Tokenizer x:s:-1,-1=2,2 | | mark=0 mincharnum=1 pad_value=p tokenexp='[a-z]+' | y:s:3 | 17
murmur ms:MurmurHash3 x:i:-1,-1=2,3 | | | y:u32:2 | 17
murmur_text ms:MurmurHash3 x:s:-1,-1=2,3 | | positive=1 | y:u32:2 | 17
bifurcation ms:BifurcationDetector s:i:-1=6 c:i:-1=3 p:i:=@0 t:i:-1=7 | | | y:i:1,z | 17
bifurcation_plain ms:BifurcationDetector s:i:-1=6 c:i:-1=3 p:i:=@0 | | | y:i:1,z | 17
ngram_repeat ms:NGramRepeatBlock n:i:-1,-1=1,4@1 s:f:-1,-1=1,8 | | ngram_size=2 | y:f:2 | 17
ngram_repeat_1 ms:NGramRepeatBlock n:i:-1,-1=1,4@1 s:f:-1,-1=1,8 | | ngram_size=1 | y:f:2 | 17
word_conv ms:WordConvEmbedding n:i32:-1,-1=2,6@1 w b c | w:f:4,1,2,3 b:f:4 c:f:8,3 | | y:f:2 | 17
word_conv_open ms:WordConvEmbedding n:i32:-1,-1=2,6@1 w:f:-1,-1,-1,-1=4,1,2,3 b:f:-1=4 c:f:-1,-1=8,3 | | | y:f:2 | 17
cdist ms:CDist a:f:-1,-1=2,3 b:f:-1,-1=4,3 | | metric=euclidean | y:f:2 | 17
cdist_square ms:CDist a:f:-1,-1=2,3 b:f:-1,-1=4,3 | | metric=sqeuclidean | y:f:2 | 17
inverse ms:Inverse x:f:-1,-1,-1=1,3,3 | | | y:f:3 | 17
ms_trilu ms:Trilu x:f:-1,-1=3,3 k:i:=@0 | | | y:f:2 | 17
ms_gather_nd ms:GatherND x:f:-1,-1=2,2 n:i:-1,2=1,2@1 | | | y:f:1 | 17
ms_gather_nd_32 ms:GatherND x:f:-1,-1,-1=2,2,3 n:i32:-1,-1=1,2@1 | | | y:f:2 | 17
ms_grid ms:GridSample x:f:-1,-1,-1,-1=1,1,4,4 g:f:-1,-1,-1,2=1,3,3,2 | | mode=bilinear padding_mode=border | y:f:4 | 17
max_pool_mask ms:MaxpoolWithMask x:f:-1,-1,-1,-1=1,1,8,8 m:i32:-1,-1,-1,-1=1,1,8,8@1 | | kernel_shape=[2,2] | y:f:4 | 17
nhwc_pool ms:NhwcMaxPool x:u8:-1,-1,-1,-1=1,8,8,1 | | kernel_shape=[2,2] | y:u8:4 | 17
deconv_pads ms:ConvTransposeWithDynamicPads x:f:-1,1,-1,-1=1,1,8,8 w p:i:-1=4@1 | w:f:1,1,3,3 | | y:f:4 | 17
unfold ms:UnfoldTensor x:f:-1,-1=2,8 | | size=3 dim=1 step=2 | y:f:3 | 17
time_warping ms:DynamicTimeWarping x:f:-1,-1,-1=1,3,4 | | | y:i32:2 | 17
fused_conv ms:FusedConv x:f:-1,-1,-1,-1=1,1,8,8 w:f:-1,-1,-1,-1=1,1,3,3 | | activation=Relu | y:f:4 | 17
fused_conv_sum ms:FusedConv x:f:-1,1,-1,-1=1,1,8,8 w b z:f:-1,1,-1,-1=1,1,6,6 | w:f:1,1,3,3 b:f:1 | activation=Relu | y:f:4 | 17
fused_gemm ms:FusedGemm a:f:-1,-1=2,3 b:f:-1,-1=3,2 c:f:-1=2 | | activation=Relu | y:f:2 | 17
fused_matmul ms:FusedMatMul a:f:-1,-1=3,2 b:f:-1,-1=3,2 | | transA=1 | y:f:2 | 17
fused_matmul_batch ms:FusedMatMul a:f:-1,-1,-1=3,2,4 b:f:-1,-1,-1=2,4,3 | | transBatchA=1 | y:f:3 | 17
transpose_matmul ms:TransposeMatMul a:f:-1,-1=3,2 b:f:-1,-1=3,2 | | transA=1 | y:f:2 | 17
qadd ms:QLinearAdd a:u8:-1,-1=2,3 s z b:u8:-1,-1=2,3 s z s z | s:f: z:u8: | | y:u8:2 | 17
qmul ms:QLinearMul a:u8:-1,-1=2,3 s z b:u8:-1,-1=2,3 s z s z | s:f: z:u8: | | y:u8:2 | 17
qaverage ms:QLinearAveragePool x:u8:-1,-1,-1,-1=1,1,8,8 s z s z | s:f: z:u8: | kernel_shape=[2,2] | y:u8:4 | 17
qaverage_last ms:QLinearAveragePool x:u8:-1,-1,-1,-1=1,8,8,2 s z s z | s:f: z:u8: | kernel_shape=[2,2] channels_last=1 | y:u8:4 | 17
qglobal ms:QLinearGlobalAveragePool x:u8:-1,-1,-1,-1=1,1,8,8 s z s z | s:f: z:u8: | | y:u8:4 | 17
qglobal_last ms:QLinearGlobalAveragePool x:u8:-1,-1,-1,-1=1,8,8,2 s z s z | s:f: z:u8: | channels_last=1 | y:u8:4 | 17
qconcat ms:QLinearConcat s z a:u8:-1,-1=2,3 s z b:u8:-1,-1=2,3 s z | s:f: z:u8: | axis=0 | y:u8:2 | 17
qconv_ms ms:QLinearConv x:u8:-1,-1,-1,-1=1,8,8,1 s z w s z s z | s:f: z:u8: w:u8:1,1,3,3 | channels_last=1 | y:u8:4 | 17
qleaky ms:QLinearLeakyRelu x:u8:-1,-1=2,3 s z s z | s:f: z:u8: | alpha=0.1 | y:u8:2 | 17
qsigmoid ms:QLinearSigmoid x:u8:-1,-1=2,3 s z s z | s:f: z:u8: | | y:u8:2 | 17
qsoftmax ms:QLinearSoftmax x:u8:-1,-1=2,3 s z s z | s:f: z:u8: | axis=-1 opset=13 | y:u8:2 | 17
qsoftmax_axis ms:QLinearSoftmax x:u8:-1,-1,-1=2,3,4 s z s z | s:f: z:u8: | axis=1 opset=13 | y:u8:3 | 17
qwhere ms:QLinearWhere c:b:-1,-1=2,3 a:u8:-1,-1=2,3 s z b:u8:-1,-1=2,3 s z s z | s:f: z:u8: | | y:u8:2 | 17
qgemm ms:QGemm a:u8:-1,-1=2,3 s z b:u8:-1,-1=3,2 s z c:i32:-1=2 s z | s:f: z:u8: | | y:u8:2 | 17
qgemm_float ms:QGemm a:u8:-1,-1=2,3 s z b s z | b:u8:3,2 s:f: z:u8: | | y:f:2 | 17
ms_quantize ms:QuantizeLinear x:f:-1,-1=2,2 s:f:-1=2 z:u8:-1=2 | | axis=0 | y:u8:2 | 17
ms_dequantize ms:DequantizeLinear x:u8:-1,-1=2,2 s:f:-1=2 z:u8:-1=2 | | axis=0 | y:f:2 | 17
moe ms:MoE x:f:-1,4=2,4 r:f:-1,2=2,2 w b v c | w:f:2,8,4 b:f:2,8 v:f:2,4,8 c:f:2,4 | k=1 activation_type=relu | y:f:2 | 17
moe_open ms:MoE x:f:-1,-1=2,4 r:f:-1,-1=2,2 w:f:-1,-1,-1=2,8,4 b:f:-1,-1=2,8 v:f:-1,-1,-1=2,4,8 c:f:-1,-1=2,4 | | k=2 activation_type=gelu | y:f:2 | 17
dynamic_lstm ms:DynamicQuantizeLSTM x:f:-1,-1,3=2,2,3 w r _ l:i32:-1=2@2 _ _ _ s z s z | w:u8:1,3,16 r:u8:1,4,16 s:f:1 z:u8:1 | hidden_size=4 | y:f:4,h,c | 17
gqa_rotary_first ms:GroupQueryAttention q:f:-1,-1,32=1,3,32 k:f:-1,-1,16=1,3,16 v:f:-1,-1,16=1,3,16 _ _ l:i32:-1=1@2 t:i32:1=1@3 e s | e:f:8,8 s:f:8,8 | num_heads=2 kv_num_heads=1 do_rotary=1 | y:f:3,g,h | 17
";
