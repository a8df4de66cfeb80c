package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

const (
	// busyRate is the number of changes requested per second. busyParallel bounds those in flight.
	busyRate     = 100
	busyParallel = 8
	// busyServices is the number of services that are changed in turn, each on its own VIP.
	busyServices = 20
)

// whileBusy runs a measurement while another client changes other services.
func (r *rig) whileBusy(ctx context.Context, measure func(context.Context) (Row, error)) (Row, error) {
	for i := range busyServices {
		if err := r.apply(ctx, r.busyService(i, 1)); err != nil {
			return Row{}, err
		}
	}
	busy, end := context.WithCancel(ctx)
	defer end()
	var done atomic.Int64
	var failed error
	var changing sync.WaitGroup
	began := time.Now()
	changing.Go(func() { failed = r.keepChanging(busy, &done) })
	row, err := measure(ctx)
	took := time.Since(began)
	rate := float64(done.Load()) / took.Seconds()
	end()
	changing.Wait()
	for i := range busyServices {
		err = errors.Join(err, r.remove(ctx, busyName(i)))
	}
	row.Fields = append(row.Fields, Field{"changes_ps", round(rate)})
	return row, errors.Join(err, failed)
}

// keepChanging changes services until ctx ends.
func (r *rig) keepChanging(ctx context.Context, done *atomic.Int64) (failed error) {
	changes := make(chan int)
	errs := make([]error, busyParallel)
	var workers sync.WaitGroup
	for w := range busyParallel {
		workers.Go(func() {
			for i := range changes {
				if err := r.apply(ctx, r.busyService(i%busyServices, 1+i/busyServices%2)); err == nil {
					done.Add(1)
				} else if ctx.Err() == nil {
					errs[w] = err
				}
			}
		})
	}
	ticker := time.NewTicker(time.Second / busyRate)
	defer ticker.Stop()
	for i := 1; ctx.Err() == nil; i++ {
		select {
		case changes <- i:
		case <-ctx.Done():
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	close(changes)
	workers.Wait()
	return errors.Join(errs...)
}

func busyName(i int) string { return fmt.Sprintf("bench-busy%d", i) }

// busyService returns a service with a backend whose weight identifies the version.
func (r *rig) busyService(i, weight int) *apiv1.Object {
	vip, _ := lab.VIPAddresses(busyVIP + i)
	o := service(busyName(i), vip, r.backends(3), servicePort)
	o.GetService().GetEndpoints()[0].Backends[0].Weight = new(uint32(weight))
	return o
}

// transactions is the number of a store's transactions, and their duration in seconds.
type transactions struct{ count, seconds float64 }

// mean returns the mean duration of the transactions after since, in ms.
func (t transactions) mean(since transactions) float64 {
	if t.count == since.count {
		return 0
	}
	return 1000 * (t.seconds - since.seconds) / (t.count - since.count)
}

// transactions returns the sum over all managers. Managers that do not lead have negligibly few.
func (r *rig) transactions(ctx context.Context) (sum transactions, err error) {
	dial := netdev.Dialer(lab.Node{Name: "router1"}.Namespace(r.lab.Topology.Name))
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	for i := range controlManagers {
		url := fmt.Sprintf("http://%s:%d/metrics", lab.ManagerAddress(i+1).V4.Addr(), lab.MetricsPort)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return sum, err
		}
		res, err := client.Do(req)
		if err != nil {
			return sum, err
		}
		lines := bufio.NewScanner(res.Body)
		for lines.Scan() {
			name, rest, _ := strings.Cut(lines.Text(), "{")
			labels, text, _ := strings.Cut(rest, "} ")
			to := map[string]*float64{
				"shunt_manager_store_duration_seconds_count": &sum.count, "shunt_manager_store_duration_seconds_sum": &sum.seconds,
			}[name]
			if to == nil || !strings.Contains(labels, `operation="txn"`) {
				continue
			}
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				res.Body.Close()
				return sum, fmt.Errorf("%s: %w", url, err)
			}
			*to += value
		}
		err = errors.Join(lines.Err(), res.Body.Close())
		if err != nil {
			return sum, err
		}
	}
	if sum.count == 0 {
		return sum, errors.New("metrics of the managers: shunt_manager_store_duration_seconds: is missing")
	}
	return sum, nil
}
