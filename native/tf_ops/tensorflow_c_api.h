// The part of TensorFlow's stable C interface that the ops use, declared here so that they build
// without TensorFlow. Equal in TensorFlow 2.15 and 2.21 (tensorflow/c/{kernels,ops,tf_tensor,tf_status,
// tf_datatype}.h). stub/stub.c has the list of the symbols; a new one here goes there too.
#ifndef TFCOLLECTIVE_TF_OPS_TENSORFLOW_C_API_H_
#define TFCOLLECTIVE_TF_OPS_TENSORFLOW_C_API_H_

#include <cstddef>
#include <cstdint>

extern "C" {

// ---- status ---------------------------------------------------------------------------------------

typedef struct TF_Status TF_Status;
typedef enum TF_Code {
  TF_OK = 0,
  TF_CANCELLED = 1,
  TF_UNKNOWN = 2,
  TF_INVALID_ARGUMENT = 3,
  TF_DEADLINE_EXCEEDED = 4,
  TF_RESOURCE_EXHAUSTED = 8,
  TF_FAILED_PRECONDITION = 9,
  TF_ABORTED = 10,
  TF_UNIMPLEMENTED = 12,
  TF_INTERNAL = 13,
  TF_UNAVAILABLE = 14,
} TF_Code;

TF_Status* TF_NewStatus(void);
void TF_DeleteStatus(TF_Status*);
void TF_SetStatus(TF_Status* status, TF_Code code, const char* message);
void TF_SetPayload(TF_Status* status, const char* key, const char* value);
TF_Code TF_GetCode(const TF_Status* status);
const char* TF_Message(const TF_Status* status);

// ---- tensors --------------------------------------------------------------------------------------

typedef enum TF_DataType {
  TF_FLOAT = 1,
  TF_DOUBLE = 2,
  TF_INT32 = 3,
  TF_UINT8 = 4,
  TF_INT16 = 5,
  TF_INT8 = 6,
  TF_INT64 = 9,
  TF_BOOL = 10,
  TF_BFLOAT16 = 14,
  TF_UINT16 = 17,
  TF_HALF = 19,
  TF_UINT32 = 22,
  TF_UINT64 = 23,
} TF_DataType;

typedef struct TF_Tensor TF_Tensor;
typedef struct TF_AllocatorAttributes {
  size_t struct_size;
  unsigned char on_host;
} TF_AllocatorAttributes;

void TF_DeleteTensor(TF_Tensor*);
TF_DataType TF_TensorType(const TF_Tensor*);
int TF_NumDims(const TF_Tensor*);
int64_t TF_Dim(const TF_Tensor*, int index);
int64_t TF_TensorElementCount(const TF_Tensor*);
void* TF_TensorData(const TF_Tensor*);

// ---- op definitions -------------------------------------------------------------------------------

typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeHandle TF_ShapeHandle;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;

TF_OpDefinitionBuilder* TF_NewOpDefinitionBuilder(const char* op_name);
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder* builder, TF_Status* status);  // frees the builder
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder* builder, const char* spec);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder* builder, const char* spec);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder* builder, const char* spec);
void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder* builder, bool is_stateful);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(TF_OpDefinitionBuilder* builder,
                                                     void (*function)(TF_ShapeInferenceContext*, TF_Status*));

int64_t TF_ShapeInferenceContextNumInputs(TF_ShapeInferenceContext*);
TF_ShapeHandle* TF_NewShapeHandle(void);
void TF_DeleteShapeHandle(TF_ShapeHandle*);
void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext*, int i, TF_ShapeHandle* handle, TF_Status*);
void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext*, int i, TF_ShapeHandle* handle, TF_Status*);
TF_ShapeHandle* TF_ShapeInferenceContextScalar(TF_ShapeInferenceContext*);
TF_ShapeHandle* TF_ShapeInferenceContextVectorFromSize(TF_ShapeInferenceContext*, size_t size);
int64_t TF_ShapeInferenceContextRank(TF_ShapeInferenceContext*, TF_ShapeHandle*);
int TF_ShapeInferenceContextRankKnown(TF_ShapeInferenceContext*, TF_ShapeHandle*);
void TF_ShapeInferenceContextWithRank(TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t rank, TF_ShapeHandle* result,
                                      TF_Status*);
void TF_ShapeInferenceContextWithRankAtLeast(TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t rank,
                                             TF_ShapeHandle* result, TF_Status*);
void TF_ShapeInferenceContextSubshape(TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t start, int64_t end,
                                      TF_ShapeHandle* result, TF_Status*);
void TF_ShapeInferenceContextConcatenateShapes(TF_ShapeInferenceContext*, TF_ShapeHandle* first, TF_ShapeHandle* second,
                                               TF_ShapeHandle* result, TF_Status*);
void TF_ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext*, TF_Status*);

// ---- kernels --------------------------------------------------------------------------------------

typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;
typedef struct TF_AsyncOpKernelDoneCallback TF_AsyncOpKernelDoneCallback;

TF_KernelBuilder* TF_NewKernelBuilder(const char* op_name, const char* device_name,
                                      void* (*create)(TF_OpKernelConstruction*),
                                      void (*compute)(void*, TF_OpKernelContext*), void (*destroy)(void*));
TF_KernelBuilder* TF_NewAsyncKernelBuilder(const char* op_name, const char* device_name,
                                           void* (*create)(TF_OpKernelConstruction*),
                                           void (*compute)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*),
                                           void (*destroy)(void*));
void TF_RegisterKernelBuilder(const char* kernel_name, TF_KernelBuilder* builder, TF_Status* status);

void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction*, TF_Status*);
void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction*, const char* name, int32_t* list_size,
                                         int32_t* total_size, TF_Status*);
void TF_OpKernelConstruction_GetAttrString(TF_OpKernelConstruction*, const char* name, char* value, size_t max_length,
                                           TF_Status*);
void TF_OpKernelConstruction_GetAttrInt32(TF_OpKernelConstruction*, const char* name, int32_t* value, TF_Status*);
void TF_OpKernelConstruction_GetAttrFloat(TF_OpKernelConstruction*, const char* name, float* value, TF_Status*);

int TF_NumInputs(TF_OpKernelContext*);
int TF_NumOutputs(TF_OpKernelContext*);
void TF_GetInput(TF_OpKernelContext*, int i, TF_Tensor** tensor, TF_Status*);  // the caller deletes the tensor
void TF_SetOutput(TF_OpKernelContext*, int i, const TF_Tensor* tensor, TF_Status*);
TF_DataType TF_ExpectedOutputDataType(TF_OpKernelContext*, int i);
TF_Tensor* TF_AllocateOutput(TF_OpKernelContext*, int index, TF_DataType, const int64_t* dims, int num_dims,
                             size_t bytes, TF_Status*);
TF_Tensor* TF_AllocateTemp(TF_OpKernelContext*, TF_DataType, const int64_t* dims, int num_dims, TF_AllocatorAttributes*,
                           TF_Status*);
TF_Tensor* TF_ForwardInputOrAllocateOutput(TF_OpKernelContext*, const int* candidates, int num_candidates,
                                           int output_index, const int64_t* dims, int num_dims, int* forwarded,
                                           TF_Status*);
void TF_OpKernelContext_Failure(TF_OpKernelContext*, TF_Status*);

}  // extern "C"

#endif  // TFCOLLECTIVE_TF_OPS_TENSORFLOW_C_API_H_
