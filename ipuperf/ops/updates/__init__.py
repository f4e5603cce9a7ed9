"""Updates of variables: accumulators, optimiser steps, and the cycles of their vertices."""
