// Package sched computes the order, or the probabilities, in which the members of an endpoint get
// new connections. It is pure: its results become sequences and packed loads in the tables of a
// mux, by which packets are scheduled until the next update (bpf/mux/schedule.h).
//
//	scheduler             sequence                            packets take
//	random                by weight                           any of it, by bits of their hash
//	round-robin           each member once                    the next
//	weighted-round-robin  by weight                           the next
//	adaptive              by weight and load (Cheetah, IV-B)  the next
//	least-connections     as the least loaded are filled      the next
//	p2c                   by weight                           the less loaded of two, by hash
package sched
