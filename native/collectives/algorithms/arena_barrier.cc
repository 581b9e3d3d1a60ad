#include "collectives/algorithms/arena_algorithms.h"
#include "collectives/algorithms/staging_rounds.h"

namespace tfc {

Status ArenaBarrier(const ArenaContext& context) {
  StagingRounds rounds(context);
  TFC_RETURN_IF_ERROR(rounds.Open(0));
  TFC_RETURN_IF_ERROR(rounds.PublishAndAwait());
  rounds.Close(0);
  return Status::Ok();
}

}  // namespace tfc
