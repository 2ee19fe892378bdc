# `make help` lists what there is. Written for any POSIX make, macOS's 3.81 included.

PY = .venv/bin/python
READY = sh .ci/python.sh .ci/environment.py

help:
	@echo 'make lab          set up on first use, then open the first notebook in JupyterLab'
	@echo 'make test         set up, then run all tests and re-run all notebooks (at most 25 minutes on 2 cores)'
	@echo 'make test-long    the tests that take longer'
	@echo 'make notebooks    re-execute all notebooks and store their outputs and figures'
	@echo 'make experiments  train what the notebooks compare; writes figures/experiments.json'
	@echo 'make bench        how fast this is, beside other libraries and the machine; writes bench.json'
	@echo 'make clean        remove .venv and all caches; trained models stay'
	@echo 'PYTHON=/path/to/python3.12 chooses the Python; all PIP_* settings are honoured.'

lab:
	@$(READY) lab
	@$(PY) .ci/lab.py

# Two test processes, each with the files that the other has not begun. The toy is trained before they start: a cell
# has 120 seconds, and compares only what it computes.
SIDE_BY_SIDE = -n 2 --dist loadfile --no-loadscope-reorder

test:
	@$(READY) test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m transformer_lib.toy
	$(PY) -m pytest -m 'not long' $(SIDE_BY_SIDE)
	$(PY) -m pytest --nbval --nbval-current-env --nbval-cell-timeout 120 $(SIDE_BY_SIDE) notebooks/

test-long:
	@$(READY) test
	$(PY) -m transformer_lib.toy
	$(PY) -m pytest -m long -o faulthandler_timeout=1200 -o faulthandler_exit_on_timeout=true

notebooks:
	@$(READY) test
	$(PY) -m transformer_lib.lessons.build

experiments:
	@$(READY) lab
	$(PY) -m transformer_lib experiments

# The peers come from tests/bench.txt. SECTIONS="train decode" measures less.
bench:
	@$(READY) bench
	$(PY) -m transformer_lib bench $(SECTIONS)

clean:
	rm -rf .venv .venv.lock build *.egg-info .pytest_cache .ruff_cache .hypothesis .ipynb_checkpoints
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help lab test test-long notebooks experiments bench clean
