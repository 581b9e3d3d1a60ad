// Collectives over a transport. Free functions: each returns when this rank's part is done.
//
// Buffers are lists of spans read and written as their concatenation. `input` and `output` may be
// the very same memory (in place), never partly overlapping. Every span holds whole elements. Results
// are bitwise equal on all ranks. Scratch memory is bounded (4 MiB, or 32 KiB a member) whatever the length.
//
// After an error the output holds nothing of use and the transport is dead.
#ifndef TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_TRANSPORT_ALGORITHMS_H_
#define TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_TRANSPORT_ALGORITHMS_H_

#include <vector>

#include "base/span.h"
#include "base/status.h"
#include "collectives/algorithms/context.h"
#include "collectives/reduce/reduction.h"

namespace tfc {

// The best of those below for this size, number of members and link. 16-bit floats are added up in float32 and rounded
// once, as partial sums in 16 bits would overflow; their input may be wide.
Status TransportAllReduce(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                          const MutableSpans& output);
Status TransportReduceScatter(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                              const std::vector<size_t>& offsets, const MutableSpans& output);

// Of 16-bit floats, by way of float32, in blocks: as many bytes as the same number of float32.
Status WideAllReduce(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                     const MutableSpans& output);
// Every member sends each share to the member that adds it up, and that one sends the result to all: the bytes
// of a ring, no partial results, a message and a connection from every member to every other. Of any type; made for
// 16-bit floats. The input may be wide.
Status DirectAllReduce(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                       const MutableSpans& output);
// Its first half, as RingReduceScatter.
Status DirectReduceScatter(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                           const std::vector<size_t>& offsets, const MutableSpans& output);

// What follows stores partial results in the type of the values: of 16-bit floats each one would be rounded.

// Reduce-scatter then all-gather round a ring (Patarasuk and Yuan 2009), segments pipelined so that
// one is reduced while the next is on the wire. Best for large buffers.
Status RingAllReduce(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                     const MutableSpans& output);

// Recursive doubling (Thakur, Rabenseifner and Gropp 2005), any number of ranks. Best for small
// buffers. Every rank exchanges messages, even for an empty buffer.
Status RecursiveDoublingAllReduce(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                                  const MutableSpans& output);

// Reduce-scatter by halving, all-gather by doubling (Thakur, Rabenseifner and Gropp 2005; on a circulant graph, Träff
// 2024), any number of ranks: the bytes of the ring in 2 ceil(lg p) steps, but nothing is added up while
// something else is on the wire. Best in between. Every rank exchanges messages, even for an empty buffer.
Status HalvingDoublingAllReduce(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                                const MutableSpans& output);

// Member i gets bytes [offsets[i], offsets[i+1]) of the reduced input. Ring. `output` may be
// that very part of the input.
Status RingReduceScatter(const TransportContext& context, const Reduction& reduction, const ConstSpans& input,
                         const std::vector<size_t>& offsets, const MutableSpans& output);

// Member i's input lands at bytes [offsets[i], offsets[i+1]) of everyone's output. Ring.
// Its own part may be in place already.
Status RingAllGather(const TransportContext& context, const ConstSpans& input, const std::vector<size_t>& offsets,
                     const MutableSpans& output);

// Binomial tree for small buffers, pipelined in segments for large ones. `root` is an index among the
// members. At the root `input` is sent (and copied to `output` when that is other memory).
Status BroadcastFrom(const TransportContext& context, int root, const ConstSpans& input, const MutableSpans& output);

// Pairwise exchange. Where input and output share memory the whole input is copied first.
// send_offsets / receive_offsets have size()+1 entries, in bytes: the part for
// (from) member i lies at [offsets[i], offsets[i+1]) of the input (output).
Status AllToAll(const TransportContext& context, const ConstSpans& input, const std::vector<size_t>& send_offsets,
                const MutableSpans& output, const std::vector<size_t>& receive_offsets);

// Dissemination barrier (Hensgen, Finkel and Manber 1988).
Status DisseminationBarrier(const TransportContext& context);

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_ALGORITHMS_TRANSPORT_ALGORITHMS_H_
