"""What an RQ worker reads at its start; registering is all that it does to get an agent."""

from z4j_rq import register_worker_bootstrap

register_worker_bootstrap()
