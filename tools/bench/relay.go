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

const relayAbout = "All on the loopback address, each a process: the target, relays, an agent, and the client, which is this program. It is as cheap as can be, so that what is measured has the machine to itself; figures of client are those of http once more, " +
	"asked by net/http's client, as programs do. Both have the same aims, since whom those had in mind that set them is not known. The target is net/http's server with responses of 1 KB. Beside it " +
	"github.com/rancher/remotedialer v0.6.1 with a reverse proxy in front that keeps its connections, in the same run and taking turns, as one of peers; the other, copies, is as many processes as there are relays and agents, which do nothing but copy bytes: what is lost there is lost to the way, not to the relay. Figures of http, client, open, wait, agents and tunnels are in plaintext from end to end; " +
	"those of https and bulk have TLS between the client and the relay, between relays, and between relay and agent; what is behind an agent is plaintext, as within a cluster. Bulk is what goes in the time of a turn, at most 1 GiB; with --long always 1 GiB."

// relayFamily measures the way to an agent's target through one relay.
func relayFamily() Family {
	specs := carrySpecs(1)
	specs = append(specs,
		Spec{Name: "kb_per_agent", Unit: "KB", About: "heap and stacks of the relay for each agent that is connected", Baseline: "a goroutine that waits for a byte on a connection"},
		Spec{Name: "kb_per_agent_tls", Unit: "KB", About: "the same over TLS", Baseline: "the same over TLS"},
		Spec{
			Name: "kb_per_tunnel", Unit: "KB", About: "heap and stacks of the relay for each stream, one to every agent, with its caller's connection, while nothing is carried",
			Baseline: "a goroutine that waits for a byte on a connection",
		},
		Spec{Name: "reconnect_s", Unit: "s", About: "the relay is started again → all agents that it had are back, with the pauses that keep them from coming all at once"},
	)
	return Family{
		Name: "relay", About: relayAbout, Specs: specs,
		Run: func(ctx context.Context, size Size) (Measured, error) {
			return measureParts(ctx, size, append(carryParts(1),
				relayPart{measureHeld(false), []string{"kb_per_agent", "kb_per_tunnel"}},
				relayPart{measureHeld(true), []string{"kb_per_agent_tls"}},
				relayPart{measureReconnect, []string{"reconnect_s"}}))
		},
	}
}

// relay2Family measures the way through two relays: the one that is asked, and the one that has the agent.
func relay2Family() Family {
	return Family{
		Name: "relay2", About: "As relay, through two relays: one is asked, the other has the agent.", Specs: carrySpecs(2),
		Run: func(ctx context.Context, size Size) (Measured, error) { return measureParts(ctx, size, carryParts(2)) },
	}
}

// carrySpecs are of what is carried. One relay has aims, and more ways to ask.
func carrySpecs(hops int) []Spec {
	aims := map[string]Aim{}
	if hops == 1 {
		aims = map[string]Aim{
			bulkName(down, 1): {Of: ofRatio, AtLeast: 0.7}, bulkName(up, 1): {Of: ofRatio, AtLeast: 0.7},
			bulkName(down, bulkStreams): {Of: ofRatio, AtLeast: 0.7}, bulkName(up, bulkStreams): {Of: ofRatio, AtLeast: 0.7},
		}
		for _, kind := range []string{httpKind, clientKind} {
			aims[httpRate(kind, 1)], aims[httpRate(kind, 32)], aims[httpTail(kind, 32)] = Aim{Of: ofRatio, AtLeast: 0.5}, Aim{Of: ofRatio, AtLeast: 0.4}, Aim{Of: ofRatio, AtMost: 4}
		}
	}
	var specs []Spec
	add := func(name, unit, about, baseline string) {
		specs = append(specs, Spec{Name: name, Unit: unit, About: about, Baseline: baseline, Aim: aims[name]})
	}
	for _, a := range append(plainAskings(hops), secureAskings(hops)...) {
		for _, n := range a.levels {
			add(httpRate(a.kind, n), "1/s", fmt.Sprintf("responses of 1 KB in %s to %d clients that keep their connections%s", a.how, n, a.who), "the same clients directly at the target, in "+a.how)
			add(httpTail(a.kind, n), "ms", "what all but one in a hundred of them took at the most", "the same directly")
		}
	}
	for _, streams := range []int{1, bulkStreams} {
		for _, down := range []bool{down, up} {
			direction := map[bool]string{true: "from the target", false: "to the target"}[down]
			add(bulkName(down, streams), "MB/s", fmt.Sprintf("incompressible bytes %s over TLS, streams at once: %d", direction, streams), "one raw TLS connection to the target")
		}
	}
	add("wait_ms", "ms", "an agent begins to connect → a request that waits for it is answered",
		"the same agent connects, and a caller that knows when it has asks then: what waiting adds is the rest. remotedialer has no waiting: its caller asks again each millisecond")
	add("open_ms", "ms", "a caller connects, opens a stream, and has its first byte answered by the target, half of the times", "the same with a connection to the target")
	return specs
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
	plain, secure := append(namesOf(plainAskings(hops)), "open_ms"), namesOf(secureAskings(hops))
	for _, streams := range []int{1, bulkStreams} {
		secure = append(secure, bulkName(down, streams), bulkName(up, streams))
	}
	return []relayPart{{measurePlain(hops), plain}, {measureSecure(hops), secure}, {measureWait(hops), []string{"wait_ms"}}}
}

func measurePlain(hops int) func(context.Context, Measured, Size) error {
	return onWays(hops, false, func(ctx context.Context, measured Measured, size Size, ways []way) error {
		if err := measureHTTP(ctx, measured, size, plainAskings(hops), ways); err != nil {
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
