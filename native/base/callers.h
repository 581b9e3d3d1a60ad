// Which threads of this process call collectives: as far as that is known, whether one that computes or sleeps may call
// one while others wait.
#ifndef TFCOLLECTIVE_BASE_CALLERS_H_
#define TFCOLLECTIVE_BASE_CALLERS_H_

namespace tfc {

// This thread calls a collective. Cheap after the first call of a thread.
void NoteCaller();

// Operations of this process run in no given order, as those of a session's graph of TensorFlow 1: while one is waited
// for, another may be held up by a step of the graph that sleeps or reads a file.
void NoteUnorderedCalls();

// True as long as only the program's main thread has called any, itself or through TensorFlow, and in order. Else
// the program has more threads for that, and one that sleeps or reads a file may call next what others wait for.
bool OneProgramThreadCalls();

// The processor time of all threads of this process, in seconds.
double ProcessorTime();

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_CALLERS_H_
