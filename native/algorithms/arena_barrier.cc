#include "algorithms/arena_algorithms.h"
#include "algorithms/staging_rounds.h"

namespace tfc {

Status ArenaBarrier(const ArenaContext& context) {
  StagingRounds rounds(context);
  TFC_RETURN_IF_ERROR(rounds.Open());
  rounds.Publish();
  TFC_RETURN_IF_ERROR(rounds.AwaitStaged());
  rounds.Close();
  return Status::Ok();
}

}  // namespace tfc
