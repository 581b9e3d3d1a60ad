/* tfcollective's C interface: the only public header of libtfcollective.so.
 *
 * Conventions
 *  - Every fallible call returns a tfc_code and, when `error` is not NULL, fills it in.
 *  - Handles are opaque. Who owns what is written at each function.
 *  - Option structs start with `struct_size`; set it to sizeof(the struct). Fields beyond it are
 *    taken as zero, so that an older caller keeps working.
 *  - Times are seconds as double, from 0 to TFC_MAX_SECONDS; others, and NaN, are refused with
 *    TFC_INVALID_ARGUMENT. A timeout of 0 means "the communicator's default".
 *  - Counts are elements, sizes are bytes; both 64 bit.
 *  - Callbacks run on the stack of a thread of the library (in a world of one: of the caller), never
 *    under a lock. They must not block: what would wait for the library there (tfc_run, tfc_call_run, tfc_join,
 *    tfc_plan_run, tfc_device_run by order, tfc_device_wait, tfc_communicator_shutdown) is refused with
 *    TFC_FAILED_PRECONDITION. They may call tfc_submit and tfc_plan_start, and must not call
 *    tfc_communicator_release.
 */
#ifndef TFCOLLECTIVE_TFCOLLECTIVE_H_
#define TFCOLLECTIVE_TFCOLLECTIVE_H_

#include <stddef.h>
#include <stdint.h>

#define TFC_ABI_VERSION 1
#define TFC_MESSAGE_SIZE 4096
#define TFC_MAX_SECONDS 1e6 /* about 11 days; poll(2) has a limit of 24 */
#define TFC_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tfc_code {
  TFC_OK = 0,
  TFC_INVALID_ARGUMENT = 1,    /* bad local argument */
  TFC_FAILED_PRECONDITION = 2, /* not initialised, closed */
  TFC_MISMATCH = 3,            /* ranks disagree; the message shows every rank's view */
  TFC_DEADLINE_EXCEEDED = 4,   /* names the operation, the phase and the missing ranks */
  TFC_PEER_LOST = 5,           /* a peer's process or link ended; `peer` is its rank */
  TFC_ABORTED = 6,             /* another rank asked us to stop; `peer` is that rank */
  TFC_CANCELLED = 7,           /* cancelled on this rank */
  TFC_IO = 8,                  /* a local system call failed; `sys_errno` says how */
  TFC_DEVICE = 9,              /* CUDA or NCCL */
  TFC_RESOURCE_EXHAUSTED = 10, /* memory, descriptors, ports, channels */
  TFC_UNIMPLEMENTED = 11,      /* combination of type, operation and backend not supported */
  TFC_PROTOCOL = 12,           /* magic, version, authentication */
  TFC_INTERNAL = 13            /* a broken invariant */
} tfc_code;

typedef enum tfc_dtype {
  TFC_FLOAT16 = 0,
  TFC_BFLOAT16 = 1,
  TFC_FLOAT32 = 2,
  TFC_FLOAT64 = 3,
  TFC_INT8 = 4,
  TFC_INT16 = 5,
  TFC_INT32 = 6,
  TFC_INT64 = 7,
  TFC_UINT8 = 8,
  TFC_UINT16 = 9,
  TFC_UINT32 = 10,
  TFC_UINT64 = 11,
  TFC_BOOL = 12
} tfc_dtype;

/* Sums and products of integers wrap. An average of integers is that of the exact sum, rounded toward zero. Floats of
 * 16 bits are combined in float32 and rounded once, however the ranks are laid out on hosts; by NCCL, as NCCL does. */
typedef enum tfc_op { TFC_AVERAGE = 0, TFC_SUM = 1, TFC_MIN = 3, TFC_MAX = 4, TFC_PRODUCT = 5 } tfc_op;

typedef enum tfc_collective {
  TFC_ALLREDUCE = 0,
  TFC_REDUCESCATTER = 1,
  TFC_ALLGATHER = 2,
  TFC_BROADCAST = 3,
  TFC_ALLTOALL = 4,
  TFC_BARRIER = 5
} tfc_collective;

typedef enum tfc_log_level {
  TFC_LOG_DEBUG = 10,
  TFC_LOG_INFO = 20,
  TFC_LOG_WARNING = 30,
  TFC_LOG_ERROR = 40
} tfc_log_level;

typedef enum tfc_transport {
  TFC_TRANSPORT_AUTO = 0, /* shared memory inside a node, TCP between nodes */
  TFC_TRANSPORT_TCP = 1   /* TCP everywhere */
} tfc_transport;

typedef struct tfc_error {
  size_t struct_size;
  int32_t code;
  int32_t peer;      /* the rank that the error is about, or -1 */
  int32_t sys_errno; /* errno of the failed system call, or 0 */
  int32_t reserved;
  char message[TFC_MESSAGE_SIZE]; /* UTF-8, ends with NUL */
} tfc_error;

typedef struct tfc_listener tfc_listener;
typedef struct tfc_cancellation tfc_cancellation;
typedef struct tfc_communicator tfc_communicator;
typedef struct tfc_plan tfc_plan;
typedef struct tfc_call tfc_call;

typedef void (*tfc_log_fn)(void* user, int32_t level, const char* message);
typedef void (*tfc_done_fn)(void* user, const tfc_error* error); /* error is NULL on success */
/* Gives the memory for a result whose size depends on the other ranks. `rows[r]` is the number of
 * rows that come from rank r. Returns NULL when there is no memory. Runs before any data moves, as a
 * callback or, for tfc_run, on its caller's thread; what callbacks must not do, it must not do either. */
typedef void* (*tfc_allocate_fn)(void* user, const int64_t* rows, int32_t size);

/* For callers whose callbacks may end at any point without returning a value, as those of Python do when a signal
 * handler raises: with tfc_allocate_result as `allocate` and this struct as `allocate_user`, `provide` is called with
 * the struct and sets `memory`. What it does not set stays NULL and means "no memory"; it is never garbage. */
typedef void (*tfc_provide_fn)(void* result); /* a tfc_result */
typedef struct tfc_result {
  size_t struct_size;
  const int64_t* rows; /* as for tfc_allocate_fn; valid during the call of `provide` */
  int32_t size;
  int32_t reserved;
  void* memory;
  tfc_provide_fn provide;
} tfc_result;
TFC_EXPORT void* tfc_allocate_result(void* result, const int64_t* rows, int32_t size); /* a tfc_allocate_fn */

/* ---- library ---------------------------------------------------------------------------------- */

TFC_EXPORT int32_t tfc_abi_version(void);
TFC_EXPORT const char* tfc_version(void);           /* static storage */
TFC_EXPORT const char* tfc_code_name(int32_t code); /* static storage; "UNKNOWN" if it is none */
TFC_EXPORT size_t tfc_dtype_size(int32_t dtype);    /* bytes; 0 if it is none */
/* From now on operations of this process may be called in any order, at the same time: a rank that waits in one of them
 * may yet call another, and is not taken for part of a deadlock. Collectives in a second thread have the same effect.
 */
TFC_EXPORT void tfc_note_unordered_calls(void);

/* ---- listener: the address that this process gives to its peers -------------------------------- */

typedef struct tfc_listener_options {
  size_t struct_size;
  const char* bind_host; /* numeric IPv4 or IPv6 address of the interface to listen on */
  const char* node_id;   /* ranks with equal node ids share memory */
  int32_t first_port;    /* listen on the first free port from this one... */
  int32_t last_port;     /* ...to this one; 0 and 0: on any */
} tfc_listener_options;

TFC_EXPORT tfc_code tfc_listener_create(const tfc_listener_options* options, tfc_listener** listener, tfc_error* error);
/* Writes the opaque address, NUL-terminated, into `buffer`. 512 bytes are always enough. */
TFC_EXPORT tfc_code tfc_listener_address(const tfc_listener* listener, char* buffer, size_t capacity, tfc_error* error);
TFC_EXPORT void tfc_listener_destroy(tfc_listener* listener); /* NULL is fine */

/* ---- cancellation: ends a wait for peers from another thread ----------------------------------- */

TFC_EXPORT tfc_code tfc_cancellation_create(tfc_cancellation** cancellation, tfc_error* error);
/* Ends the tfc_communicator_create that has this cancellation, or the next one that gets it, with TFC_CANCELLED. Ranks
 * that are connected to this one get TFC_ABORTED with `cause`, as by tfc_communicator_abort. Any thread, at any time;
 * does not wait for the call to return. The first request counts; there is no way back. */
TFC_EXPORT void tfc_cancellation_request(tfc_cancellation* cancellation, const char* cause);
TFC_EXPORT void tfc_cancellation_release(tfc_cancellation* cancellation); /* NULL is fine */

/* ---- communicator: a connected world ----------------------------------------------------------- */

typedef struct tfc_communicator_options {
  size_t struct_size;
  int32_t rank;
  int32_t size;
  const char* const* addresses; /* `size` addresses in rank order */
  const uint8_t* key;           /* the job key: 16 to 64 bytes */
  size_t key_size;
  uint64_t generation; /* frames of another generation are refused */
  double connect_timeout_s;
  double op_timeout_s;
  double stall_warning_s; /* until a wait is reported, and a deadlock of all ranks ends; 0: never */
  int32_t transport;      /* tfc_transport */
  int32_t spin_us;        /* spin this long before sleeping; -1: by cores and local ranks */
  tfc_log_fn log;         /* may be NULL */
  void* log_user;
  /* Of a process set: its `size` ranks as ranks of the world, which errors then name. NULL: they are the world's. */
  const int32_t* world_ranks;
  /* 1: do not measure the network at the start, but take algorithms for a usual one. Rank 0's counts. */
  int32_t skip_link_probe;
  /* By which another thread can end the call; NULL: none can. It must live until the call returns, and serves one call
   * at a time. */
  tfc_cancellation* cancellation;
} tfc_communicator_options;

/* Connects to the peers and returns when all of them are there. Takes the listener over, also on
 * failure; `listener` may be NULL when size is 1. The caller releases the communicator.
 * After a failure no thread, no descriptor and no memory of the attempt is left when the call returns. To tell the
 * peers why, that takes up to 1 s. */
TFC_EXPORT tfc_code tfc_communicator_create(tfc_listener* listener, const tfc_communicator_options* options,
                                            tfc_communicator** communicator, tfc_error* error);
/* Tells all ranks to stop: their operations end with TFC_ABORTED and `cause`, ours with
 * TFC_CANCELLED. Never blocks; the first abort wins. */
TFC_EXPORT void tfc_communicator_abort(tfc_communicator* communicator, const char* cause);
/* Leaves in order: says so to the peers, ends the threads, closes the sockets. Operations in
 * flight here end with TFC_CANCELLED; peers that still need us get TFC_PEER_LOST. Rank 0 waits up
 * to `timeout_s` for the others to leave. A second call does nothing. */
TFC_EXPORT tfc_code tfc_communicator_shutdown(tfc_communicator* communicator, double timeout_s, tfc_error* error);
/* Drops the caller's reference; the last one shuts down. NULL is fine. */
TFC_EXPORT void tfc_communicator_release(tfc_communicator* communicator);

typedef struct tfc_communicator_info {
  size_t struct_size;
  int32_t rank, size;
  int32_t local_rank, local_size; /* among the ranks of this node, in rank order */
  int32_t cross_rank, cross_size; /* among the nodes' ranks with this local_rank */
  int32_t uses_shared_memory;
  int32_t broken;     /* 1 once an error has ended the communicator */
  uint64_t completed; /* operations that ended well here */
  uint64_t pending;   /* operations that wait or run here */
  /* Of the network that the data passes, measured at the start and the same on all ranks: seconds from a small
   * message's send to its receiver, and bytes per second of a large one. 0: not measured, or shared memory only. */
  double link_latency_s;
  double link_bandwidth;
} tfc_communicator_info;

TFC_EXPORT tfc_code tfc_communicator_get_info(const tfc_communicator* communicator, tfc_communicator_info* info,
                                              tfc_error* error);

/* ---- collectives ------------------------------------------------------------------------------- */

/* One piece of an operation's data. Several pieces are treated as their concatenation and are never
 * packed. `input` and `output` may be the same memory. */
typedef struct tfc_span {
  const void* input;
  void* output;
  int64_t count;
} tfc_span;

typedef struct tfc_request {
  size_t struct_size;
  int32_t collective; /* tfc_collective */
  int32_t dtype;      /* tfc_dtype */
  int32_t op;         /* tfc_op; all-reduce and reduce-scatter */
  int32_t root;       /* broadcast */
  double prescale;    /* factor applied to the inputs ... */
  double postscale;   /* ... and to the result; both 1.0 for none */
  double timeout_s;
  const char* name; /* for matching (tfc_submit) and messages; copied. What follows a tab is for messages only */
  /* all-reduce, broadcast: any number of spans.
   * all-gather, all-to-all: one span; `output` is ignored, `allocate` gives it.
   * reduce-scatter: one span with the whole input; `output` holds this rank's rows: rows/size of
   * them, and one more on the first rows % size ranks.
   * barrier: none. */
  const tfc_span* spans;
  size_t num_spans;
  const int64_t* shape; /* of the input of one-span operations; needed where rows matter */
  int32_t ndim;
  const int64_t* splits; /* all-to-all: rows for each rank; NULL: equal parts */
  tfc_allocate_fn allocate;
  void* allocate_user;
} tfc_request;

/* Runs one collective and returns when it is done here. Ranks must call in the same order; a rank
 * that calls something else ends the communicator with TFC_MISMATCH on all ranks. Calls of several
 * threads run one after the other. */
TFC_EXPORT tfc_code tfc_run(tfc_communicator* communicator, const tfc_request* request, tfc_error* error);

/* A collective that is run again and again, on other memory each time: an all-reduce of one span, or a barrier. Checks
 * the request as tfc_run does, once: a small operation would spend much of its time on that. Local. The call does not
 * keep the communicator alive; the caller releases the call. */
TFC_EXPORT tfc_code tfc_call_prepare(tfc_communicator* communicator, const tfc_request* request, tfc_call** call,
                                     tfc_error* error);
/* As tfc_run, from `input` to `output`, which may be the same memory; a barrier has none. A call may be run by several
 * threads, but by one at a time. */
TFC_EXPORT tfc_code tfc_call_run(tfc_call* call, const void* input, void* output, tfc_error* error);
TFC_EXPORT void tfc_call_release(tfc_call* call); /* NULL is fine */

/* Hands one collective over and returns at once. Ranks may submit in different orders: operations
 * are matched by name. The memory behind the spans must live until `done` is called, which happens
 * exactly once if and only if TFC_OK is returned. On a mismatch all ranks get TFC_MISMATCH and the
 * communicator lives on. */
TFC_EXPORT tfc_code tfc_submit(tfc_communicator* communicator, const tfc_request* request, tfc_done_fn done, void* user,
                               tfc_error* error);

/* This rank has no more data. It takes part, with zeros, in what the other ranks all-reduce until all of them
 * have joined, and returns then; `last_rank` (may be NULL) gets the rank that joined last. Averages are of the
 * ranks that still contribute. Other operations are refused meanwhile with TFC_MISMATCH on all ranks: those of
 * tfc_submit one by one, those of tfc_run end the communicator. This rank must not call anything else meanwhile.
 * TFC_DEADLINE_EXCEEDED when for `timeout_s` nothing was asked of this rank and some rank has not joined. */
TFC_EXPORT tfc_code tfc_join(tfc_communicator* communicator, double timeout_s, int32_t* last_rank, tfc_error* error);

/* ---- bucket plans: the fixed list of all-reduces of one training step --------------------------- */

typedef struct tfc_plan_options {
  size_t struct_size;
  const char* name;      /* matched between ranks */
  const char* signature; /* what the ranks must agree on, one line a tensor; shown on a mismatch. What follows a tab
                          * in a line is shown, too, but may differ from rank to rank: the tensor's name, say */
  int32_t num_buckets;
  int32_t op; /* tfc_op */
  double prescale;
  double postscale;
  double timeout_s;
} tfc_plan_options;

/* Finds the plan of that name or makes it. Local; the ranks agree on it (one message each) when it
 * is first started. The caller releases the plan. */
TFC_EXPORT tfc_code tfc_plan_acquire(tfc_communicator* communicator, const tfc_plan_options* options, tfc_plan** plan,
                                     tfc_error* error);
/* Starts bucket `bucket` of the plan's current step, without any negotiation. Buckets run in
 * ascending order; one that is started early waits its turn. `done` as in tfc_submit. */
TFC_EXPORT tfc_code tfc_plan_start(tfc_plan* plan, int32_t bucket, int32_t dtype, const tfc_span* spans,
                                   size_t num_spans, tfc_done_fn done, void* user, tfc_error* error);
/* One bucket of a step: tensors of one type. */
typedef struct tfc_bucket {
  const tfc_span* spans;
  size_t num_spans;
  int32_t dtype; /* tfc_dtype */
} tfc_bucket;

/* Starts all buckets of the plan's current step, in order, and returns when all of them are done here. The error is the
 * first one; the memory behind the spans is not used any longer then, either. */
TFC_EXPORT tfc_code tfc_plan_run(tfc_plan* plan, const tfc_bucket* buckets, size_t num_buckets, tfc_error* error);
TFC_EXPORT void tfc_plan_release(tfc_plan* plan); /* NULL is fine */
/* Local, never blocks: this process does not need the plan any longer. What the plan takes is given back once its
 * buckets are done here and all ranks that have started it have forgotten it, or at shutdown. A plan that is started
 * again is agreed on again, so ranks may forget at different times. Nothing happens if there is no such plan. */
TFC_EXPORT tfc_code tfc_plan_forget(tfc_communicator* communicator, const char* name, tfc_error* error);

/* ---- GPUs: the same collectives on device memory, by NCCL ---------------------------------------- */

/* Where the CUDA driver and NCCL are looked for. Both are loaded when first needed, never before. */
typedef struct tfc_device_options {
  size_t struct_size;
  const char* cuda_library;           /* NULL: libcuda.so.1, found by the loader */
  const char* nccl_library;           /* this file or none. NULL: a copy that is loaded already, then ... */
  const char* const* nccl_candidates; /* ... these files, then libnccl.so.2, found by the loader */
  size_t num_nccl_candidates;
  int32_t share_gpus; /* 1: several ranks may use one GPU (NCCL 2.30.3, see docs/gpu.md) */
  int32_t max_ctas;   /* how many blocks of a GPU NCCL may take; 0: its own choice */
} tfc_device_options;

typedef struct tfc_device_libraries {
  size_t struct_size;
  int32_t cuda_version; /* 13000: CUDA 13.0; 0: no driver */
  int32_t nccl_version; /* 22703: NCCL 2.27.3; 0: no NCCL, `problem` says why */
  int32_t num_devices;
  int32_t reserved;
  char cuda_path[512];
  char nccl_path[512];
  char problem[2048];
} tfc_device_libraries;

typedef struct tfc_device_info {
  size_t struct_size;
  int32_t ordinal;
  int32_t major, minor; /* compute capability */
  int32_t num_peers;    /* other GPUs whose memory it can use directly */
  uint64_t memory;      /* bytes */
  char name[256];
  char bus_id[32];
  char uuid[64];
} tfc_device_info;

/* What there is. Never fails for what is missing: that stands in `libraries`. */
TFC_EXPORT tfc_code tfc_device_find(const tfc_device_options* options, tfc_device_libraries* libraries,
                                    tfc_error* error);
TFC_EXPORT tfc_code tfc_device_describe(const tfc_device_options* options, int32_t ordinal, tfc_device_info* info,
                                        tfc_error* error);
/* Before the first operation on a GPU. Loads nothing. */
TFC_EXPORT tfc_code tfc_device_configure(tfc_communicator* communicator, const tfc_device_options* options,
                                         tfc_error* error);

typedef struct tfc_device_call {
  size_t struct_size;
  int32_t device;  /* ordinal; -1: where the memory is */
  int32_t by_name; /* 0: as tfc_run, 1: as tfc_submit */
  void* stream;    /* CUstream (= cudaStream_t) of the caller; NULL: the default stream */
  /* by_name: called exactly once if TFC_OK is returned, when the operation is on the GPU (or will never be). */
  tfc_done_fn launched;
  void* user;
  /* by_name: 1: where a rank has no NCCL, all of them go through the host's memory, instead of TFC_UNIMPLEMENTED. The
   * same on all ranks. */
  int32_t through_host;
  /* by_name: not NULL: the request is bucket `bucket` of this plan, as with tfc_plan_start. What the plan says (name,
   * op, scales, timeout) is not read from the request. All buckets of a plan lie on GPUs, or none does. */
  tfc_plan* plan;
  int32_t bucket;
} tfc_device_call;

/* Runs one collective on device memory, after what `stream` holds so far. Every pointer of the request (and what
 * `allocate` returns) is device memory, which must live until the operation is complete there.
 *   by_name 0: ranks call in the same order. Returns when the operation is on the GPU; what is given to `stream` later
 *     comes after it. The host waits for its peers only in the first call and where rows matter (all-gather,
 *     all-to-all). Ranks that call different things end the communicator with TFC_MISMATCH.
 *   by_name 1: returns at once; tfc_device_join makes a stream wait. Not for all-gather and all-to-all. Buckets of a
 *     plan are launched in the plan's order; ranks that have joined must not be missing from them.
 * `ticket` (may be NULL) is for tfc_device_wait and tfc_device_join. TFC_UNIMPLEMENTED says which library is missing,
 * TFC_INVALID_ARGUMENT that memory is not of this GPU, TFC_DEVICE what CUDA or NCCL say. */
TFC_EXPORT tfc_code tfc_device_run(tfc_communicator* communicator, const tfc_request* request,
                                   const tfc_device_call* call, uint64_t* ticket, tfc_error* error);
/* What is given to `stream` from now on comes after the ticket's operation. Never blocks. */
TFC_EXPORT tfc_code tfc_device_join(tfc_communicator* communicator, uint64_t ticket, void* stream, tfc_error* error);
/* Returns when the ticket's operation and those before it are complete, and known to be the same on all ranks.
 * TFC_DEADLINE_EXCEEDED after `timeout_s` changes nothing: wait again. */
TFC_EXPORT tfc_code tfc_device_wait(tfc_communicator* communicator, uint64_t ticket, double timeout_s,
                                    tfc_error* error);
/* Device memory for a result, where `like` lies (NULL: on the GPU that this rank works on). Freed with
 * tfc_device_free, which waits until the GPU does not use it. */
TFC_EXPORT tfc_code tfc_device_allocate(tfc_communicator* communicator, const void* like, size_t bytes, void** memory,
                                        tfc_error* error);
TFC_EXPORT void tfc_device_free(tfc_communicator* communicator, void* memory);

/* ---- timeline: what this rank did when ---------------------------------------------------------- */

typedef struct tfc_timeline_event {
  size_t struct_size;
  int32_t collective;                       /* tfc_collective, or -1: an interval that tfc_timeline_add was given */
  uint32_t channel;                         /* operations of all ranks with equal channel ... */
  uint64_t sequence;                        /* ... and sequence are one collective */
  uint64_t bytes;                           /* of the input */
  int64_t submitted_ns, began_ns, ended_ns; /* nanoseconds of CLOCK_MONOTONIC */
  const char* name;
} tfc_timeline_event;

typedef void (*tfc_timeline_fn)(void* user, const tfc_timeline_event* event);

/* Records the last `capacity` operations from now on; what was recorded before is dropped. */
TFC_EXPORT tfc_code tfc_timeline_start(tfc_communicator* communicator, size_t capacity, tfc_error* error);
/* Adds an interval of the caller's own: name, began_ns, ended_ns. Does nothing while nothing is recorded. */
TFC_EXPORT tfc_code tfc_timeline_add(tfc_communicator* communicator, const tfc_timeline_event* event, tfc_error* error);
/* Ends the recording and shows it to `visit`, oldest event first; what `event` points to is valid during the
 * call. `dropped` (may be NULL) gets the number of older events that did not fit. */
TFC_EXPORT tfc_code tfc_timeline_stop(tfc_communicator* communicator, tfc_timeline_fn visit, void* user,
                                      uint64_t* dropped, tfc_error* error);

/* ---- process sets by number: how TensorFlow's kernels find their communicator ------------------- */

/* Makes `communicator` (or nothing: NULL) the one of the process set `process_set_id` in this process. Takes a
 * reference of its own. Number 0 is the set of all ranks. */
TFC_EXPORT tfc_code tfc_process_set_publish(int32_t process_set_id, tfc_communicator* communicator, tfc_error* error);
/* The communicator of a process set; the caller releases it. TFC_FAILED_PRECONDITION if number 0 has none,
 * TFC_INVALID_ARGUMENT if another number has none. */
TFC_EXPORT tfc_code tfc_process_set_acquire(int32_t process_set_id, tfc_communicator** communicator, tfc_error* error);

#ifdef __cplusplus
}
#endif

#endif /* TFCOLLECTIVE_TFCOLLECTIVE_H_ */
