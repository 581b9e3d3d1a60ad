// The scale factors of a reduction as attributes of ops: text, because a float attribute of TensorFlow's holds 24 of a
// double's 53 bits.
#ifndef TFCOLLECTIVE_TF_OPS_FACTOR_H_
#define TFCOLLECTIVE_TF_OPS_FACTOR_H_

#include <locale>
#include <optional>
#include <sstream>
#include <string>

namespace tfc_ops {

// The number that is all of `text`, in any locale; nothing if it is none, or is not finite.
inline std::optional<double> ParseFactor(const std::string& text) {
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());
  double factor = 0;
  stream >> factor;
  if (stream.fail() || stream.peek() != std::istringstream::traits_type::eof()) return std::nullopt;
  return factor;
}

inline std::string BadFactor(const std::string& name, const std::string& text) {
  return name + " must be a finite number, not '" + text + "'";
}

}  // namespace tfc_ops

#endif  // TFCOLLECTIVE_TF_OPS_FACTOR_H_
