#!/usr/bin/env bash
# test_tensorflows.sh "VERSION..." PYTEST-ARGUMENT...
# `make test-tensorflows`: the wheels in dist/ with one TensorFlow after the other; build/tensorflows.md has the results.
# VERSION-tf_keras: with Keras 2, which TensorFlow takes for TF_USE_LEGACY_KERAS=1.
# Each environment goes again: all of them take 14 GB. That no nightly can be installed is no failure.
set -uo pipefail
cd "$(dirname "$0")/.."
results=$PWD/build/tensorflows.md code=0
mkdir -p build
printf '| TensorFlow | Keras | Python | Tests | Seconds |\n|---|---|---|---|---|\n' >"$results"
for version in $1; do
  name=tf-$version number=${version%-tf_keras} python=${PYTHON_TF215:-$PYTHON} legacy=
  package=tensorflow-cpu==$number
  if [ "$version" = nightly ]; then python=$PYTHON package=tf-nightly; fi
  rm -f "build/tests-$name/results.xml"
  if tools/make_venv.sh "$python" ".venv/$name" run test -- "$package" &&
      ".venv/$name/bin/python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps dist/*.whl &&
      # It asks for the package `tensorflow`, whatever stands for that.
      { [ "$number" = "$version" ] || { legacy=1 && ".venv/$name/bin/python" -m pip install --quiet \
        --disable-pip-version-check --no-deps "tf_keras==${number%.*}.*"; }; }; then
    TF_USE_LEGACY_KERAS=$legacy tools/pytest.sh "$name" --junitxml=results.xml "${@:2}" || code=1
    TF_USE_LEGACY_KERAS=$legacy ".venv/$name/bin/python" tools/tensorflow_row.py "build/tests-$name/results.xml" >>"$results"
  else
    [ "$version" = nightly ] || code=1
    echo "| $version | | | cannot be installed | |" >>"$results"
  fi
  rm -rf ".venv/$name"
done
cat "$results"
exit $code
