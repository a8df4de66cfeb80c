// Package balance simulates how evenly schedulers spread connections over servers, and what that does to the slowest of them. What muxes do is done by
// Shunt's own code: internal/sched makes sequences and words, internal/ring the ring, internal/load says which loads are told.
package balance
