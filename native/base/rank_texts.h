// Formats text about ranks: lists of ranks, and how their views differ.
#ifndef TFCOLLECTIVE_BASE_RANK_TEXTS_H_
#define TFCOLLECTIVE_BASE_RANK_TEXTS_H_

#include <map>
#include <string>
#include <vector>

namespace tfc {

// The first line of a view, with its labels.
std::string FirstLine(const std::string& view);

// The text without what follows a tab in each line: labels that may differ from rank to rank.
std::string WithoutLabels(const std::string& text);

// The labels: of each line what follows its tab, without parentheses; of one without a tab all of it.
std::vector<std::string> LabelsOf(const std::string& text);

// "ranks 1, 2 and 5" / "rank 1".
std::string RankList(const std::vector<int>& ranks);

// "rank 0: <view>; rank 1: <view>; ..." with equal views put together: "ranks 0 and 2: <view>".
// Of many different views some are shown and the others counted.
std::string CompareViews(const std::map<int, std::string>& views);

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_RANK_TEXTS_H_
