/* The steps of an all-reduce, for simulations: the interface of libtfc_simulator.so, which no wheel has. */
#ifndef TFCOLLECTIVE_SIMULATOR_STEPS_H_
#define TFCOLLECTIVE_SIMULATOR_STEPS_H_

#include <stdint.h>
#include <tfcollective/tfcollective.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tfc_step_kind {
  TFC_STEP_SEND = 0,
  TFC_STEP_RECEIVE = 1,
  TFC_STEP_WAIT = 2 /* until the request is done */
} tfc_step_kind;

typedef struct tfc_step {
  int32_t kind;       /* tfc_step_kind */
  int32_t peer;       /* the other rank; -1 for a wait */
  uint32_t message;   /* a send and the receive on the other side with equal message belong together */
  int32_t to_scratch; /* 1 for a receive into scratch memory: its bytes are read and reduced or copied later */
  uint64_t bytes;     /* 0 for a wait */
  uint64_t request;   /* the number of this send or receive; of a wait: which one it waits for */
} tfc_step;

typedef void (*tfc_step_fn)(void* user, const tfc_step* step);

/* Shows to `visit`, in their order, the steps that rank `rank` of `size` takes in a sum of `count` elements over a
 * transport, each rank on a node of its own: the algorithm is run on this thread, over a transport that moves nothing.
 * Needs memory for the elements. */
TFC_EXPORT tfc_code tfc_allreduce_steps(int32_t size, int32_t rank, int64_t count, int32_t dtype, tfc_step_fn visit,
                                        void* user, tfc_error* error);

#ifdef __cplusplus
}
#endif

#endif /* TFCOLLECTIVE_SIMULATOR_STEPS_H_ */
