package main

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// Peers that relays are measured beside: another relay, and processes that only copy bytes.
const (
	peerName   = "remotedialer"
	copiesName = "copies"
)

// relayFigure is figures that are measured together over TLS or plaintext.
type relayFigure struct {
	names    []string
	isSecure bool
	// measure returns their values for a route in a turn.
	measure func(ctx context.Context, r route, turn time.Duration) []float64
}

// twoRelays compares the route through two relays with the one through one relay, instead of all routes.
const twoRelays = "http_c32_two_relays_rps"

func relayFigures(pods int) []relayFigure {
	return []relayFigure{
		{[]string{"http_c1_rps"}, false, requests(1)},
		{[]string{"http_c32_rps", "http_c32_p99_ms"}, false, requests(32)},
		{[]string{twoRelays}, false, requests(32)},
		{[]string{"open_ms"}, false, openStreams},
		{[]string{"https_c32_rps"}, true, requests(32)},
		{[]string{"kube_list_c1_rps"}, true, calls(1, listPods(pods))},
		{[]string{"kube_list_c32_rps"}, true, calls(32, listPods(pods))},
		{[]string{"kube_get_c32_rps"}, true, calls(32, getPod)},
		{[]string{"kube_watch_events_per_s"}, true, watchPods},
		{[]string{"kube_exec_ms"}, true, executeCommands},
		{[]string{"bulk_down_mb_s"}, true, transfer(opDown, 1)},
		{[]string{"bulk_up_mb_s"}, true, transfer(opUp, 1)},
		{[]string{"bulk_down_8_mb_s"}, true, transfer(opDown, 8)},
		{[]string{"bulk_up_8_mb_s"}, true, transfer(opUp, 8)},
	}
}

// relayRoutes measures what callers send to the target of an agent through a relay.
func relayRoutes(ctx context.Context, f *fixture, size Size, measured Measured) {
	pods := cmp.Or(size.Pods, defaultPods)
	size.For = size.For * 3 / 4 // there are many comparisons, and steady ones
	for _, isSecure := range []bool{false, true} {
		var wanted []relayFigure
		for _, rf := range relayFigures(pods) {
			if rf.isSecure == isSecure && size.wants(rf.names...) {
				wanted = append(wanted, rf)
			}
		}
		if len(wanted) == 0 {
			continue
		}
		check(onFixture(ctx, f.programs, func(f *fixture) {
			r := newRelayFixture(ctx, f, pods, isSecure)
			for _, rf := range wanted {
				r.compare(ctx, rf, size, measured)
			}
		}))
	}
}

// compare measures the figures on all routes in turns: the value on the first one, the baseline on the second one.
func (r *relayFixture) compare(ctx context.Context, rf relayFigure, size Size, measured Measured) {
	routes := r.routes
	if rf.names[0] == twoRelays {
		routes = []route{r.throughSecondRelay(ctx), r.routes[0]}
	}
	// Each route has at least leastTurns+1 turns.
	turn := max(size.For/time.Duration((leastTurns+1)*len(routes)), 25*time.Millisecond)
	values := make([][][]float64, len(routes)) // by route and turn
	takes := make([]func(int), len(routes))
	for i, to := range routes {
		takes[i] = func(int) { values[i] = append(values[i], rf.measure(ctx, to, turn)) }
	}
	rotate(ctx, size.For, takes...)
	for k, name := range rf.names {
		medians := make([]float64, len(routes))
		for i, turns := range values {
			var column []float64
			for _, values := range turns {
				column = append(column, values[k])
			}
			medians[i] = median(column)
		}
		m := beside(medians[0], medians[1])
		m.Peers = map[string]float64{}
		for i := 2; i < len(routes); i++ {
			m.Peers[routes[i].name] = medians[i]
		}
		measured[name] = m
	}
}

// meter counts events, and their latencies in milliseconds, after a warm-up and until the end of a turn. If there were
// none, it counts the first one after that.
type meter struct {
	from, until time.Time

	mu        sync.Mutex
	count     int
	latencies []float64
}

func newMeter(turn time.Duration) *meter {
	now := time.Now()
	return &meter{from: now.Add(turn / 5), until: now.Add(turn)}
}

// add counts n events that began and ended at these times. It returns false when the turn is over.
func (m *meter) add(n int, began, ended time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ended.After(m.from) && (m.count == 0 || !ended.After(m.until)) {
		m.count += n
		m.latencies = append(m.latencies, milliseconds(ended.Sub(began)))
		if ended.After(m.until) {
			m.until = ended
		}
	}
	return m.count == 0 || ended.Before(m.until)
}

// rate returns the events per second.
func (m *meter) rate() float64 { return float64(m.count) / m.until.Sub(m.from).Seconds() }
