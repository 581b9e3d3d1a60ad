# An image in which `make demo` and `make test` run:
#
#   docker build --tag tfcollective-dev .
#   docker run --rm --init tfcollective-dev                 # make demo: needs network, some 4 GB and several minutes
#   docker run --rm --init -it tfcollective-dev bash
#
# --init: an init process takes the orphans of processes that are killed. Data between ranks uses memfd_create, which
# Docker's default seccomp profile allows; only NCCL needs a larger --shm-size.
FROM python:3.11-bookworm

RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ git libgtest-dev make \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --shell /bin/bash developer

USER developer
WORKDIR /home/developer/tfcollective
COPY --chown=developer:developer . .
CMD ["make", "demo"]
