// Keeps connections out of forks of this process.
//
// A peer notices the end of this process by the end of its connections. A child made by fork (a data
// loader's worker, say) would hold copies of them, and they would outlive a killed parent.
#ifndef TFCOLLECTIVE_BASE_FORK_GUARD_H_
#define TFCOLLECTIVE_BASE_FORK_GUARD_H_

namespace tfc {

// Forks made from now on close their copy of `fd` at once. Descriptors beyond 65535 are left alone.
void CloseInForks(int fd);
// To be called before `fd` is closed or given away: its number may soon mean something else.
void KeepInForks(int fd);

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_FORK_GUARD_H_
