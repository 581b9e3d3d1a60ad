#include "algorithms/arena_algorithms.h"
#include "algorithms/staging_rounds.h"

namespace tfc {

Status ArenaBarrier(const ArenaContext& context) {
  StagingRounds rounds(context);
  TFC_RETURN_IF_ERROR(rounds.Open(0));
  rounds.Publish(0);
  TFC_RETURN_IF_ERROR(rounds.AwaitStaged(0));
  rounds.Close(0);
  return Status::Ok();
}

}  // namespace tfc
