package main

import (
	"context"
	"fmt"
	"time"
)

// Whom relays are measured beside: another one, and what does nothing but copy.
const (
	peerName   = "remotedialer"
	copiesName = "copies"
)

const (
	bulkBytes   = 1 << 30
	bulkStreams = 8
	manyAgents  = 1000
)

// relayFigures measures the requests to the target of an agent through one relay, or through two: one gets
// the request, the other has the agent.
func relayFigures(hops int) func(context.Context, Size) (Measured, error) {
	return func(ctx context.Context, size Size) (Measured, error) {
		parts := carryParts(hops)
		if hops == 1 {
			parts = append(parts,
				relayPart{measureHeld(false), []string{"kb_per_agent", "kb_per_tunnel"}},
				relayPart{measureHeld(true), []string{"kb_per_agent_tls"}},
				relayPart{measureReconnect, []string{"reconnect_s"}})
		}
		return measureParts(ctx, size, parts)
	}
}

func httpRate(kind string, clients int) string { return fmt.Sprintf("%s_c%d_rps", kind, clients) }

func httpTail(kind string, clients int) string { return fmt.Sprintf("%s_c%d_p99_ms", kind, clients) }

func bulkName(down bool, streams int) string {
	name := "bulk_up"
	if down {
		name = "bulk_down"
	}
	if streams > 1 {
		name += fmt.Sprintf("_%d", streams)
	}
	return name + "_mb_s"
}

// relayPart is figures that are measured on one bed.
type relayPart struct {
	measure func(context.Context, Measured, Size) error
	figures []string
}

func measureParts(ctx context.Context, size Size, parts []relayPart) (Measured, error) {
	measured := Measured{}
	size.For = size.For * 3 / 4 // there are many comparisons, and steady ones
	for _, part := range parts {
		if !size.wants(part.figures...) {
			continue
		}
		if err := part.measure(ctx, measured, size); err != nil {
			return nil, err
		}
	}
	return measured, nil
}

// carryParts are the figures of what is carried, in plaintext and over TLS.
func carryParts(hops int) []relayPart {
	plain, secure := append(namesOf(plainAskings()), "open_ms"), namesOf(secureAskings(hops))
	if hops == 1 {
		secure = append(secure, kubeFigures()...)
	}
	for _, streams := range []int{1, bulkStreams} {
		secure = append(secure, bulkName(down, streams), bulkName(up, streams))
	}
	return []relayPart{{measurePlain(hops), plain}, {measureSecure(hops), secure}, {measureWait(hops), []string{"wait_ms"}}}
}

func measurePlain(hops int) func(context.Context, Measured, Size) error {
	return onWays(hops, false, func(ctx context.Context, measured Measured, size Size, ways []way) error {
		if err := measureHTTP(ctx, measured, size, plainAskings(), ways); err != nil {
			return err
		}
		if !size.wants("open_ms") {
			return nil
		}
		took, err := compare(ctx, size.For, ways, func(ctx context.Context, w way, _ int) ([]float64, error) {
			value, err := w.opens(ctx, turnOf(size, len(ways)))
			return []float64{value}, err
		})
		if err != nil {
			return err
		}
		measured["open_ms"] = took.measurement(0)
		return nil
	})
}

func measureSecure(hops int) func(context.Context, Measured, Size) error {
	return onWays(hops, true, func(ctx context.Context, measured Measured, size Size, ways []way) error {
		if err := measureHTTP(ctx, measured, size, secureAskings(hops), ways); err != nil {
			return err
		}
		if hops == 1 {
			if err := measureKube(ctx, measured, size, ways); err != nil {
				return err
			}
		}
		for _, streams := range []int{1, bulkStreams} {
			for _, down := range []bool{down, up} {
				if !size.wants(bulkName(down, streams)) {
					continue
				}
				m, err := measureBulk(ctx, size, ways, streams, down)
				if err != nil {
					return err
				}
				measured[bulkName(down, streams)] = m
			}
		}
		return nil
	})
}

// onWays runs fn on a bed with all ways to the target.
func onWays(hops int, secure bool, fn func(context.Context, Measured, Size, []way) error) func(context.Context, Measured, Size) error {
	return func(ctx context.Context, measured Measured, size Size) error {
		return onRelayBed(ctx, size, secure, func(b *relayBed) error {
			ways, err := b.ways(ctx, hops)
			if err != nil {
				return err
			}
			return fn(ctx, measured, size, ways)
		})
	}
}

// measureBulk moves 1 GiB a turn, or what goes in a turn's time. However many streams there are, they are beside one raw connection; what as many of those do is noted.
func measureBulk(ctx context.Context, size Size, ways []way, streams int, down bool) (Measurement, error) {
	const firstBytes = 4 << 20
	ours, direct, peer, copied := ways[0], ways[1], ways[2], ways[3]
	type run struct {
		way

		streams int
	}
	runs := []run{{ours, streams}, {direct, 1}, {peer, streams}, {copied, streams}}
	if streams > 1 {
		runs = append(runs, run{direct, streams})
	}
	rates := make([][]float64, len(runs))
	turn := turnOf(size, len(runs))
	takes := make([]func(context.Context, int) error, len(runs))
	least, most := int64(0), int64(0)
	for i, r := range runs {
		takes[i] = func(ctx context.Context, _ int) error {
			first, counted := int64(size.of(firstBytes)*r.streams), int64(size.of(bulkBytes))
			if !size.Long {
				// A rate that is known says how much goes in a turn.
				rate := median(rates[i])
				if len(rates[i]) == 0 {
					var err error
					if rate, err = r.carries(ctx, r.streams, down, first, first*warmingPart); err != nil {
						return err
					}
				}
				counted = min(counted, max(first, int64(rate*1e6*turn.Seconds())))
			}
			rate, err := r.carries(ctx, r.streams, down, first, counted)
			rates[i] = append(rates[i], rate)
			if least = min(least, counted); least == 0 {
				least = counted
			}
			most = max(most, counted)
			return err
		}
	}
	if err := rotate(ctx, size.For, takes...); err != nil {
		return Measurement{}, err
	}
	m := beside(median(rates[0]), median(rates[1]))
	m.Peers = map[string]float64{peerName: median(rates[2]), copiesName: median(rates[3])}
	m.Note = fmt.Sprintf("turns of %d to %d MiB", least>>20, most>>20)
	if streams > 1 {
		m.Note += fmt.Sprintf("; %d raw TLS connections: %.0f MB/s", streams, median(rates[4]))
	}
	return m, nil
}

// warmingPart of a turn's time goes before it.
const warmingPart = 4

// turnOf is what counts of one turn of so many, for there to be one more than the least number of them.
func turnOf(size Size, ways int) time.Duration {
	const atLeast = 20 * time.Millisecond
	return max(size.For*warmingPart/(warmingPart+1)/time.Duration((leastTurns+1)*ways), atLeast)
}

// compared is medians by way and value.
type compared [][]float64

// compare measures values of each way, taking turns.
func compare(ctx context.Context, duration time.Duration, ways []way, measure func(ctx context.Context, w way, round int) ([]float64, error)) (compared, error) {
	values := make([][][]float64, len(ways)) // by way and round
	takes := make([]func(context.Context, int) error, len(ways))
	for i, w := range ways {
		takes[i] = func(ctx context.Context, round int) error {
			v, err := measure(ctx, w, round)
			values[i] = append(values[i], v)
			return err
		}
	}
	if err := rotate(ctx, duration, takes...); err != nil {
		return nil, err
	}
	out := make(compared, len(ways))
	for i, rounds := range values {
		for v := range rounds[0] {
			var column []float64
			for _, round := range rounds {
				column = append(column, round[v])
			}
			out[i] = append(out[i], median(column))
		}
	}
	return out, nil
}

// measurement of one value: ours beside the direct way, and the peers.
func (c compared) measurement(value int) Measurement {
	m := beside(c[0][value], c[1][value])
	m.Peers = map[string]float64{peerName: c[2][value], copiesName: c[3][value]}
	return m
}
