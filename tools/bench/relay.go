package main

import (
	"context"
	"slices"
	"time"
)

// Peers that relays are measured beside: another relay, and processes that only copy bytes.
const (
	peerName   = "remotedialer"
	copiesName = "copies"
)

const bulkStreams = 8

// relayRoutes measures what callers send to the target of an agent through a relay.
func relayRoutes(ctx context.Context, f *fixture, size Size, measured Measured) {
	size.For = size.For * 3 / 4 // there are many comparisons, and steady ones
	for _, part := range []struct {
		isSecure bool
		figures  []relayFigure
	}{{false, plainFigures()}, {true, secureFigures()}} {
		isWanted := func(rf relayFigure) bool { return size.wants(rf.names...) }
		if !slices.ContainsFunc(part.figures, isWanted) {
			continue
		}
		check(onFixture(ctx, f.profile, func(f *fixture) {
			r := newRelayFixture(ctx, f, part.isSecure)
			for _, rf := range part.figures {
				if isWanted(rf) {
					rf.measure(ctx, r, size, measured)
				}
			}
		}))
	}
}

// relayFigure is figures that are measured together: one value of measureRoute for each name.
type relayFigure struct {
	names []string
	// measureRoute measures values of a route in a turn.
	measureRoute func(ctx context.Context, r route, turn time.Duration) []float64
	// twoRelays compares the route through two relays with the one through one relay, instead of all routes.
	twoRelays bool
}

func (rf relayFigure) measure(ctx context.Context, r *relayFixture, size Size, measured Measured) {
	routes := r.routes
	if rf.twoRelays {
		routes = []route{r.twoRelays(ctx), r.routes[0]}
	}
	turn := turnOf(size, len(routes))
	values := make([][][]float64, len(routes)) // by route and name
	takes := make([]func(int), len(routes))
	for i, to := range routes {
		values[i] = make([][]float64, len(rf.names))
		takes[i] = func(int) {
			for k, value := range rf.measureRoute(ctx, to, turn) {
				values[i][k] = append(values[i][k], value)
			}
		}
	}
	rotate(ctx, size.For, takes...)
	for k, name := range rf.names {
		m := beside(median(values[0][k]), median(values[1][k]))
		for i := 2; i < len(routes); i++ {
			if m.Peers == nil {
				m.Peers = map[string]float64{}
			}
			m.Peers[routes[i].name] = median(values[i][k])
		}
		measured[name] = m
	}
}

// requests returns the rate and the 99th percentile of the latency of HTTP requests by n clients.
func requests(n int) func(context.Context, route, time.Duration) []float64 {
	return func(ctx context.Context, r route, turn time.Duration) []float64 {
		rate, p99 := load(ctx, n, turn, func() caller { return r.newHTTPCaller(ctx) })
		return []float64{rate, p99}
	}
}

func requestRate(n int) func(context.Context, route, time.Duration) []float64 {
	return func(ctx context.Context, r route, turn time.Duration) []float64 { return requests(n)(ctx, r, turn)[:1] }
}

func plainFigures() []relayFigure {
	return []relayFigure{
		{names: []string{"http_c1_rps"}, measureRoute: requestRate(1)},
		{names: []string{"http_c32_rps", "http_c32_p99_ms"}, measureRoute: requests(32)},
		{names: []string{"http_c32_two_relays_rps"}, measureRoute: requestRate(32), twoRelays: true},
		{names: []string{"open_ms"}, measureRoute: func(ctx context.Context, r route, turn time.Duration) []float64 {
			return []float64{r.openTime(ctx, turn)}
		}},
	}
}

func secureFigures() []relayFigure {
	calls := func(name string, n int, do kubeCall) relayFigure {
		return relayFigure{names: []string{name}, measureRoute: func(
			ctx context.Context, r route, turn time.Duration,
		) []float64 {
			rate, _ := load(ctx, n, turn, func() caller { return r.newKubeCaller(ctx, do) })
			return []float64{rate}
		}}
	}
	bulk := func(name string, streams int, isDown bool) relayFigure {
		return relayFigure{names: []string{name}, measureRoute: func(
			ctx context.Context, r route, turn time.Duration,
		) []float64 {
			return []float64{r.transfer(ctx, turn, streams, isDown)}
		}}
	}
	return []relayFigure{
		{names: []string{"https_c32_rps"}, measureRoute: requestRate(32)},
		calls("kube_list_c1_rps", 1, listPods), calls("kube_list_c32_rps", 32, listPods),
		calls("kube_get_c32_rps", 32, getPod),
		{names: []string{"kube_watch_events_per_s"}, measureRoute: watchPods},
		{names: []string{"kube_exec_ms"}, measureRoute: executeCommands},
		bulk("bulk_down_mb_s", 1, true), bulk("bulk_up_mb_s", 1, false),
		bulk("bulk_down_8_mb_s", bulkStreams, true), bulk("bulk_up_8_mb_s", bulkStreams, false),
	}
}

// warmUpPart is the part of a turn before the window.
const warmUpPart = 0.2

// turnOf returns the duration of a turn, so that each route has at least leastTurns+1 turns.
func turnOf(size Size, routes int) time.Duration {
	return max(size.For/time.Duration((leastTurns+1)*routes), 25*time.Millisecond)
}

// window is the period in which events are counted.
type window struct{ from, until time.Time }

func newWindow(turn time.Duration) window {
	from := time.Now().Add(time.Duration(float64(turn) * warmUpPart))
	return window{from: from, until: from.Add(time.Duration(float64(turn) * (1 - warmUpPart)))}
}

// counter counts events in a window. If there were none, it counts the first one after the window.
type counter struct {
	window

	count int
	last  time.Time
}

// add counts n events at now. It returns false when the window is over.
func (c *counter) add(n int, now time.Time) bool {
	if now.After(c.from) && (c.count == 0 || !now.After(c.until)) {
		c.count, c.last = c.count+n, now
	}
	return c.count == 0 || now.Before(c.until)
}

// rate returns the events per second of all counters.
func rate(counters ...*counter) float64 {
	count, until := 0, counters[0].until
	for _, c := range counters {
		count += c.count
		if c.last.After(until) {
			until = c.last
		}
	}
	return float64(count) / until.Sub(counters[0].from).Seconds()
}
