// Package balance simulates how evenly schedulers spread connections over servers, and the effect
// on the slowest requests. The muxes run Shunt's own code: internal/sched makes sequences and
// packed loads, internal/ring the ring, internal/load decides which loads are reported.
package balance
