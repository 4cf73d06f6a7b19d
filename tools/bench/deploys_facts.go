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
	// bareBatch is what one request fetches, as many as the reader's.
	bareBatch = 4000
)

// factsBed is a stretch of OBSERVED, and two streams for what follows from it.
type factsBed struct {
	parts    *bed
	database string
	js       jetstream.JetStream
	last     uint64
	count    int // of observations
	told     []bareFact
	round    int
}

// bareFact is a fact that was told, to be told again.
type bareFact struct {
	workload, subject string
	header            nats.Header
	data              []byte
}

// bareFlight is a fact on its way.
type bareFlight struct {
	workload string
	ack      jetstream.PubAckFuture
}

func measureFacts(ctx context.Context, measured Measured, size Size) (err error) {
	parts := &bed{}
	defer parts.close(ctx, &err)
	database, err := parts.postgres(ctx)
	if err != nil {
		return err
	}
	conn, err := parts.nats()
	if err != nil {
		return err
	}
	b := &factsBed{parts: parts, database: database.URL()}
	if b.js, err = parts.streams(ctx, conn); err != nil {
		return err
	}
	if b.last, err = newStage(b.js, size.of(factsWorkloads)).play(ctx, factsRollouts); err != nil {
		return err
	}
	b.count = int(b.last)
	// What is told by the first is what the bare one tells.
	if _, err := b.ours(ctx); err != nil {
		return err
	}
	if err := b.capture(ctx); err != nil {
		return err
	}
	ours, bare, err := takeTurns(ctx, size.For,
		func(ctx context.Context, _ int) (float64, error) { return b.ours(ctx) },
		func(ctx context.Context, _ int) (float64, error) { return b.bare(ctx) })
	if err != nil {
		return err
	}
	m := beside(median(ours), median(bare))
	m.Note = fmt.Sprintf("%d facts of %d observations of %d workloads", len(b.told), b.count, size.of(factsWorkloads))
	measured["facts_per_s"] = m
	return nil
}

// stream makes a stream anew, with the settings of DEPLOYS.
func (b *factsBed) stream(ctx context.Context, name, subjects string) error {
	if err := b.js.DeleteStream(ctx, name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("empty stream %s: %w", name, err)
	}
	for _, s := range topology.Streams() {
		if s.Name != topology.StreamDeploys {
			continue
		}
		cfg := s.Config(benchCell, topology.Options{StorageBytes: 1 << 30})
		cfg.Name, cfg.Subjects, cfg.RePublish.Source = name, []string{subjects}, subjects
		cfg.RePublish.Destination = "live." + subjects
		if _, err := b.js.CreateStream(ctx, cfg); err != nil {
			return fmt.Errorf("make stream %s: %w", name, err)
		}
	}
	return nil
}

// ours takes the stretch through the reader into an empty database and an empty stream.
func (b *factsBed) ours(ctx context.Context) (rate float64, err error) {
	parts := &bed{}
	defer parts.close(ctx, &err)
	if err := b.stream(ctx, topology.StreamDeploys, benchCell.All(topology.FamilyDeploy)); err != nil {
		return 0, err
	}
	b.round++
	series, err := deploysstore.Migrations()
	if err != nil {
		return 0, fmt.Errorf("make the tables: %w", err)
	}
	pool, err := parts.pool(ctx, b.database, fmt.Sprintf("deploys%d", b.round), series...)
	if err != nil {
		return 0, err
	}
	ingest := readerOf(pool, b.js)
	consumer, err := ingest.Consumer()
	if err != nil {
		return 0, fmt.Errorf("make the reader: %w", err)
	}
	cursor, err := watchCursor(ctx, parts, pool)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	parts.background(ctx, consumer.Run)
	ended, err := cursor.reached(ctx, b.last)
	if err != nil {
		return 0, err
	}
	told, err := lastSequence(ctx, b.js, topology.StreamDeploys)
	return float64(told) / ended.Sub(began).Seconds(), err
}

// readerOf is the reader of the service with its default settings.
func readerOf(pool *pgxpool.Pool, js jetstream.JetStream) *deploysnats.Ingest {
	const label = "lockstep.dev/deploy-group"
	return &deploysnats.Ingest{
		Pool: pool, JetStream: js, Cell: benchCell, Logger: quiet(), Store: &deploysstore.Store{}, Directory: everyAgent{},
		Environments: environment.Rules{Label: label}, History: history.Rules{GroupLabel: label},
	}
}

// everyAgent is a directory in which every agent is one of the project's.
type everyAgent struct{}

func (everyAgent) Agent(id int64) (directory.Agent, bool) {
	return directory.Agent{ID: id, ProjectID: benchProject}, true
}
func (everyAgent) Changed() <-chan struct{} { return nil }
func (everyAgent) Following() bool          { return true }

// capture keeps what was told.
func (b *factsBed) capture(ctx context.Context) error {
	stream, err := b.js.Stream(ctx, topology.StreamDeploys)
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", topology.StreamDeploys, err)
	}
	for n := uint64(1); n <= stream.CachedInfo().State.LastSeq; n++ {
		m, err := stream.GetMsg(ctx, n)
		if err != nil {
			return fmt.Errorf("read what was told: %w", err)
		}
		header := maps.Clone(m.Header)
		delete(header, jetstream.ExpectedLastSubjSeqHeader)
		delete(header, jetstream.ExpectedLastSubjSeqSubjHeader)
		subject := bareRoot + "." + m.Subject
		b.told = append(b.told, bareFact{workload: subject[:strings.LastIndexByte(subject, '.')], subject: subject, header: header, data: m.Data})
	}
	if len(b.told) == 0 {
		return errors.New("nothing was told")
	}
	return nil
}

// bare consumes the stretch and publishes as many facts, and does nothing between: the least that anybody does who tells the same facts as safely. It does less than ours,
// which also stores them, with states and history. Its position is kept by the server, batch by batch, after what follows from it is there.
func (b *factsBed) bare(ctx context.Context) (float64, error) {
	if err := b.stream(ctx, bareStream, bareRoot+".>"); err != nil {
		return 0, err
	}
	stream, err := b.js.Stream(ctx, topology.StreamObserved)
	if err != nil {
		return 0, fmt.Errorf("look at stream %s: %w", topology.StreamObserved, err)
	}
	began := time.Now()
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: bareStream, AckPolicy: jetstream.AckAllPolicy, MaxAckPending: bareBatch})
	if err != nil {
		return 0, fmt.Errorf("consume: %w", err)
	}
	last := make(map[string]uint64, len(b.told))
	for consumed, published := 0, 0; consumed < b.count; {
		batch, err := consumer.Fetch(min(bareBatch, b.count-consumed), jetstream.FetchContext(ctx))
		if err != nil {
			return 0, fmt.Errorf("consume: %w", err)
		}
		var newest jetstream.Msg
		for newest = range batch.Messages() {
			consumed++
		}
		if err := batch.Error(); err != nil {
			return 0, fmt.Errorf("consume: %w", err)
		}
		upTo := len(b.told) * consumed / b.count
		if err := b.publish(ctx, b.told[published:upTo], last); err != nil {
			return 0, err
		}
		published = upTo
		if err := newest.DoubleAck(ctx); err != nil {
			return 0, fmt.Errorf("consume: %w", err)
		}
	}
	took := time.Since(began)
	if err := stream.DeleteConsumer(ctx, bareStream); err != nil {
		return 0, fmt.Errorf("remove the consumer: %w", err)
	}
	told, err := lastSequence(ctx, b.js, bareStream)
	if err == nil && told != uint64(len(b.told)) {
		err = fmt.Errorf("%d of %d facts were published", told, len(b.told))
	}
	if err != nil {
		return 0, err
	}
	return float64(len(b.told)) / took.Seconds(), nil
}

// publish publishes facts, one of each workload at a time, each on condition that the one before it is the last one about its workload. The next one of a workload
// goes with the acknowledgement of the one before.
func (b *factsBed) publish(ctx context.Context, facts []bareFact, last map[string]uint64) error {
	left := map[string][]bareFact{}
	var workloads []string
	for _, f := range facts {
		if left[f.workload] == nil {
			workloads = append(workloads, f.workload)
		}
		left[f.workload] = append(left[f.workload], f)
	}
	flying := make([]bareFlight, 0, len(facts)) // in the order in which they are acknowledged
	send := func(workload string) error {
		if len(left[workload]) == 0 {
			return nil
		}
		f := left[workload][0]
		left[workload] = left[workload][1:]
		m := &nats.Msg{Subject: f.subject, Header: maps.Clone(f.header), Data: f.data}
		m.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(last[workload], 10)}
		m.Header[jetstream.ExpectedLastSubjSeqSubjHeader] = []string{workload + ".*"}
		ack, err := b.js.PublishMsgAsync(m, jetstream.WithStallWait(stagePatience))
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		flying = append(flying, bareFlight{workload, ack})
		return nil
	}
	for _, workload := range workloads {
		if err := send(workload); err != nil {
			return err
		}
	}
	for len(flying) > 0 {
		f := flying[0]
		flying = flying[1:]
		select {
		case ack := <-f.ack.Ok():
			last[f.workload] = ack.Sequence
		case err := <-f.ack.Err():
			return fmt.Errorf("publish: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("publish: %w", context.Cause(ctx))
		}
		if err := send(f.workload); err != nil {
			return err
		}
	}
	return nil
}
