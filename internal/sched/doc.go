// Package sched decides in which order, or with what odds, the members of an endpoint are given new connections. It is pure: what it decides becomes
// sequences and words in the tables of a mux, which packets are scheduled by until the next ones come (bpf/mux/schedule.h).
//
//	scheduler             sequence                                        packets take
//	random                by weight                                       any of it, by bits of their hash
//	round-robin           each member once                                the next
//	weighted-round-robin  by weight                                       the next
//	adaptive              by weight and load (Cheetah, section IV-B)      the next
//	least-connections     those that the least loaded would be filled by  the next
//	p2c                   by weight                                       of two places by bits of their hash the less loaded
package sched
