package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/history"
	deploysnats "lockstep.internal/services/deploys/nats"
	deploysstore "lockstep.internal/services/deploys/postgres"
)

const (
	factsWorkloads = 500
	factsRollouts  = 5
	// bareStream has the settings of DEPLOYS.
	bareStream = "BARE"
	bareRoot   = "bare"
	// bareBatch is the size of a fetch, the same as that of the service.
	bareBatch = 4000
)

// factsFixture has observations on OBSERVED, and streams for facts.
type factsFixture struct {
	database     string
	js           jetstream.JetStream
	observations uint64
	facts        []bareFact
	round        int
}

// bareFact is a fact that the service published, to publish again.
type bareFact struct {
	workload, subject string
	header            nats.Header
	data              []byte
}

// measureFacts measures the reader of the deploys service over OBSERVED, from its start to its last
// commit. The baseline consumes the same observations and publishes the same facts as safely, but
// detects and stores nothing.
func measureFacts(ctx context.Context, f *fixture, size Size, measured Measured) {
	b := &factsFixture{database: f.postgres(ctx)}
	_, b.js, _ = f.jetStream(ctx)
	b.observations = newRecording(b.js, size.of(factsWorkloads)).publish(ctx, factsRollouts)
	b.detect(ctx)
	b.readFacts(ctx)
	m := takeTurns(ctx, size.For,
		func(int) float64 { return b.detect(ctx) },
		func(int) float64 { return b.bare(ctx) })
	m.Note = fmt.Sprintf("%d facts of %d observations of %d workloads",
		len(b.facts), b.observations, size.of(factsWorkloads))
	measured["facts_per_s"] = m
}

// emptyStream makes a stream with the settings of DEPLOYS. It deletes an existing one.
func (b *factsFixture) emptyStream(ctx context.Context, name, subjects string) {
	if err := b.js.DeleteStream(ctx, name); !errors.Is(err, jetstream.ErrStreamNotFound) {
		check(err)
	}
	for _, s := range topology.Streams() {
		if s.Name == topology.StreamDeploys {
			cfg := s.Config(benchCell, topology.Options{StorageBytes: 1 << 30})
			cfg.Name, cfg.Subjects = name, []string{subjects}
			cfg.RePublish.Source, cfg.RePublish.Destination = subjects, "live."+subjects
			must(b.js.CreateStream(ctx, cfg))
		}
	}
}

// detect runs the reader of the service with an empty database and an empty stream, and returns facts per second.
func (b *factsFixture) detect(ctx context.Context) (rate float64) {
	b.emptyStream(ctx, topology.StreamDeploys, benchCell.All(topology.FamilyDeploy))
	b.round++
	check(onFixture(ctx, "", func(f *fixture) {
		pool := f.pool(ctx, b.database, fmt.Sprintf("deploys%d", b.round), must(deploysstore.Migrations())...)
		consumer := must(newDeploysIngest(pool, b.js).Consumer())
		cursor := watchCursor(ctx, f, pool)
		began := time.Now()
		f.background(ctx, consumer.Run)
		ended := cursor.reached(ctx, b.observations)
		rate = float64(lastSequence(ctx, b.js, topology.StreamDeploys)) / ended.Sub(began).Seconds()
	}))
	return rate
}

// newDeploysIngest returns the reader of the service with its default settings.
func newDeploysIngest(pool *pgxpool.Pool, js jetstream.JetStream) *deploysnats.Reader {
	const label = "lockstep.dev/deploy-group"
	return &deploysnats.Reader{
		Pool: pool, JetStream: js, Cell: benchCell, Logger: quiet(), Directory: everyAgent{},
		Environments: environment.Rules{Label: label}, History: history.Rules{GroupLabel: label},
	}
}

// everyAgent is a directory with every agent.
type everyAgent struct{}

func (everyAgent) Agent(id int64) (directory.Agent, bool) {
	return directory.Agent{ID: id, ProjectID: benchProject}, true
}
func (everyAgent) Changed() <-chan struct{} { return nil }
func (everyAgent) UpToDate() bool           { return true }

// readFacts keeps the published facts.
func (b *factsFixture) readFacts(ctx context.Context) {
	stream := must(b.js.Stream(ctx, topology.StreamDeploys))
	for n := uint64(1); n <= stream.CachedInfo().State.LastSeq; n++ {
		m := must(stream.GetMsg(ctx, n))
		subject := bareRoot + "." + m.Subject
		workload := subject[:strings.LastIndexByte(subject, '.')]
		b.facts = append(b.facts, bareFact{workload: workload, subject: subject, header: m.Header, data: m.Data})
	}
	if len(b.facts) == 0 {
		check(errors.New("the deploys service published no fact"))
	}
}

// bare consumes the observations and publishes the facts. It acknowledges a batch after the facts
// of the batch.
func (b *factsFixture) bare(ctx context.Context) float64 {
	b.emptyStream(ctx, bareStream, bareRoot+".>")
	stream := must(b.js.Stream(ctx, topology.StreamObserved))
	began := time.Now()
	consumer := must(stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: bareStream, AckPolicy: jetstream.AckAllPolicy, MaxAckPending: bareBatch,
	}))
	last := make(map[string]uint64, len(b.facts))
	count := int(b.observations)
	for consumed, sent := 0, 0; consumed < count; {
		batch := must(consumer.Fetch(min(bareBatch, count-consumed), jetstream.FetchContext(ctx)))
		var newest jetstream.Msg
		for newest = range batch.Messages() {
			consumed++
		}
		check(batch.Error())
		next := len(b.facts) * consumed / count
		b.publish(ctx, b.facts[sent:next], last)
		sent = next
		check(newest.DoubleAck(ctx))
	}
	rate := perSecond(len(b.facts), began)
	check(stream.DeleteConsumer(ctx, bareStream))
	if n := lastSequence(ctx, b.js, bareStream); n != uint64(len(b.facts)) {
		check(fmt.Errorf("published %d of %d facts", n, len(b.facts)))
	}
	return rate
}

// publish publishes facts, each with a compare-and-set on the last fact of its workload. The next
// fact of a workload follows the acknowledgement of the one before.
func (b *factsFixture) publish(ctx context.Context, facts []bareFact, last map[string]uint64) {
	for len(facts) > 0 {
		futures := map[string]jetstream.PubAckFuture{} // by workload
		var later []bareFact
		for _, f := range facts {
			if futures[f.workload] != nil {
				later = append(later, f)
				continue
			}
			m := &nats.Msg{Subject: f.subject, Header: maps.Clone(f.header), Data: f.data}
			m.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(last[f.workload], 10)}
			m.Header[jetstream.ExpectedLastSubjSeqSubjHeader] = []string{f.workload + ".*"}
			futures[f.workload] = must(b.js.PublishMsgAsync(m, jetstream.WithStallWait(publishTimeout)))
		}
		for workload, future := range futures {
			last[workload] = acknowledged(ctx, future)
		}
		facts = later
	}
}
