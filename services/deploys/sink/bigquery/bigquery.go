// Package bigquery is the sink that puts each fact into a table of BigQuery as a row.
//
// The table is made where there is none, partitioned by day of occurred_at and clustered by
// namespace and name; columns that a newer version adds are added to it. The dataset must exist.
// The column data has the fact whole.
//
// Rows are streamed by tabledata.insertAll with the event's id as insert id, so BigQuery drops a
// row that comes twice within about a minute; fact_id is that id, for queries that want to be sure.
// The Storage Write API was not chosen: its default stream drops no repeated row at all, its
// exactly-once streams need an offset kept for each stream, and at the rate of deploys its
// throughput buys nothing.
//
// A row that BigQuery finds invalid puts its fact on DEAD, without those beside it; everything else
// is tried again.
package bigquery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"sync"
	"time"

	"cloud.google.com/go/bigquery"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
	htransport "google.golang.org/api/transport/http"

	"lockstep.internal/libs/config"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
)

// Config of a table.
type Config struct {
	Project         string        `yaml:"project" help:"project of the dataset"`
	Dataset         string        `yaml:"dataset" help:"dataset of the table; it must exist"`
	Table           string        `yaml:"table" help:"table, made where there is none"`
	CredentialsFile config.Secret `yaml:"credentials_file" help:"key of a service account that may create tables and insert rows in the dataset; default: what the machine has"`
	APIURL          config.URL    `yaml:"api_url" help:"another API than Google's, such as an emulator; without credentials_file, none are sent to it; default: Google's"`
}

// DefaultConfig is what Config is unless told.
func DefaultConfig() Config { return Config{Table: "deploy_facts"} }

// Missing says which required settings are not given.
func (c Config) Missing() []string {
	var missing []string
	for key, value := range map[string]string{"project": c.Project, "dataset": c.Dataset, "table": c.Table} {
		if value == "" {
			missing = append(missing, key)
		}
	}
	return missing
}

var (
	projectPattern = regexp.MustCompile(`^[a-z][a-z0-9.:-]{4,61}[a-z0-9]$`)
	datasetPattern = regexp.MustCompile(`^[A-Za-z0-9_]+$`)
)

// Validate says what is wrong with what is given.
func (c Config) Validate() []error {
	var faults []error
	if c.Project != "" && !projectPattern.MatchString(c.Project) {
		faults = append(faults, config.Invalid("project", "%q is no id of a project", c.Project))
	}
	for key, value := range map[string]string{"dataset": c.Dataset, "table": c.Table} {
		if value != "" && !datasetPattern.MatchString(value) {
			faults = append(faults, config.Invalid(key, "%q is not made of letters, digits and underscores", value))
		}
	}
	if u, err := url.Parse(c.APIURL.Reveal()); c.APIURL != "" && (err != nil || u.Host == "") {
		faults = append(faults, config.Invalid("api_url", "is no URL"))
	}
	return faults
}

// Options beside the configuration.
type Options struct {
	// Transport to send with, which limits and guards. Required.
	Transport http.RoundTripper
	// Timeout of one insertion, its own repetitions included. Defaults to 30 s.
	Timeout time.Duration
}

// Sink inserts rows.
type Sink struct {
	cfg     Config
	options Options

	mu      sync.Mutex
	client  *bigquery.Client
	ensured bool
}

// New makes the sink; it connects when it delivers.
func New(cfg Config, o Options) *Sink {
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	return &Sink{cfg: cfg, options: o}
}

// batch is how many rows are inserted at once: BigQuery recommends at most 500.
const batch = 200

// Traits implements sink.Sink.
func (s *Sink) Traits() sink.Traits { return sink.Traits{Batch: batch} }

// Thread implements sink.Sink.
func (s *Sink) Thread(events.DeployFact) (string, bool) { return "rows", true }

// Deliver implements sink.Sink.
func (s *Sink) Deliver(ctx context.Context, d sink.Delivery) error {
	return s.DeliverBatch(ctx, []sink.Delivery{d})[0]
}

// DeliverBatch implements sink.Batcher.
func (s *Sink) DeliverBatch(ctx context.Context, deliveries []sink.Delivery) []error {
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	verdicts := make([]error, len(deliveries))
	rows := make([]row, 0, len(deliveries))
	for i, d := range deliveries {
		r, err := newRow(d.Key, d.Fact)
		if err != nil {
			verdicts[i] = sink.Permanent(err)
			continue
		}
		r.index = i
		rows = append(rows, r)
	}
	table, err := s.table(ctx)
	if err != nil {
		s.all(rows, verdicts, judge("prepare the table", err))
		return verdicts
	}
	s.insert(ctx, table, rows, verdicts)
	return verdicts
}

func (s *Sink) all(rows []row, verdicts []error, err error) {
	for _, r := range rows {
		verdicts[r.index] = err
	}
}

// insert inserts the rows, half of them at a time when they are too many.
func (s *Sink) insert(ctx context.Context, table *bigquery.Table, rows []row, verdicts []error) {
	if len(rows) == 0 {
		return
	}
	savers := make([]bigquery.ValueSaver, len(rows))
	for i := range rows {
		savers[i] = &rows[i]
	}
	err := table.Inserter().Put(ctx, savers)
	var invalid bigquery.PutMultiError
	var refused *googleapi.Error
	switch {
	case err == nil:
	case errors.As(err, &invalid):
		s.judgeRows(rows, invalid, verdicts)
	case errors.As(err, &refused) && refused.Code == http.StatusRequestEntityTooLarge:
		if len(rows) == 1 {
			verdicts[rows[0].index] = sink.Permanent(fmt.Errorf("insert the row: %w", err))
			return
		}
		s.insert(ctx, table, rows[:len(rows)/2], verdicts)
		s.insert(ctx, table, rows[len(rows)/2:], verdicts)
	default:
		if errors.As(err, &refused) && refused.Code == http.StatusNotFound {
			s.forget()
		}
		s.all(rows, verdicts, judge("insert rows", err))
	}
}

// judgeRows reads what BigQuery says of each row; those of which it says nothing are in the table,
// or stopped by those that are invalid, which it says.
func (s *Sink) judgeRows(rows []row, invalid bigquery.PutMultiError, verdicts []error) {
	for _, e := range invalid {
		err := fmt.Errorf("insert the row: %w", e.Errors)
		for _, cause := range e.Errors {
			if known, ok := errors.AsType[*bigquery.Error](cause); ok && known.Reason == "invalid" {
				err = sink.Permanent(err)
				break
			}
		}
		if e.RowIndex < len(rows) {
			verdicts[rows[e.RowIndex].index] = err
		}
	}
}

func judge(what string, err error) error {
	wrapped := fmt.Errorf("%s: %w", what, sink.WithoutURL(err))
	if refused, ok := errors.AsType[*googleapi.Error](err); ok {
		if delay, ok := sink.ParseRetryAfter(refused.Header, time.Now()); ok {
			return &sink.RetryAfter{Delay: delay, Err: wrapped}
		}
	}
	return wrapped
}

func (s *Sink) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ensured = false
}

// table connects, and sees to it that the table is there.
func (s *Sink) table(ctx context.Context) (*bigquery.Table, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == nil {
		client, err := s.connect(ctx)
		if err != nil {
			return nil, err
		}
		s.client = client
	}
	table := s.client.Dataset(s.cfg.Dataset).Table(s.cfg.Table)
	if s.ensured {
		return table, nil
	}
	if err := ensure(ctx, table); err != nil {
		return nil, err
	}
	s.ensured = true
	return table, nil
}

func (s *Sink) connect(ctx context.Context) (*bigquery.Client, error) {
	// What is made here outlives the delivery that needs it first.
	ctx = context.WithoutCancel(ctx)
	authentication := []option.ClientOption{option.WithScopes(bigquery.Scope)}
	var where []option.ClientOption
	if s.cfg.APIURL != "" {
		where = append(where, option.WithEndpoint(s.cfg.APIURL.Reveal()))
	}
	switch {
	case s.cfg.CredentialsFile.IsSet():
		key, err := s.cfg.CredentialsFile.Read()
		if err != nil {
			return nil, fmt.Errorf("the credentials for BigQuery: %w", err)
		}
		authentication = append(authentication, option.WithAuthCredentialsJSON(option.ServiceAccount, []byte(key)))
	case s.cfg.APIURL != "":
		authentication = []option.ClientOption{option.WithoutAuthentication()}
	}
	transport, err := htransport.NewTransport(ctx, s.options.Transport, authentication...)
	if err != nil {
		return nil, fmt.Errorf("authenticate to BigQuery: %w", err)
	}
	client, err := bigquery.NewClient(ctx, s.cfg.Project, append(where, option.WithHTTPClient(&http.Client{Transport: transport}))...)
	if err != nil {
		return nil, fmt.Errorf("set up the client for BigQuery: %w", err)
	}
	return client, nil
}

// ensure makes the table, or adds the columns that it lacks.
func ensure(ctx context.Context, table *bigquery.Table) error {
	metadata, err := table.Metadata(ctx)
	if refused, ok := errors.AsType[*googleapi.Error](err); ok && refused.Code == http.StatusNotFound {
		err = table.Create(ctx, &bigquery.TableMetadata{
			Description: "Facts about deploys, told by Lockstep.", Schema: schema(),
			TimePartitioning: &bigquery.TimePartitioning{Type: bigquery.DayPartitioningType, Field: "occurred_at"},
			Clustering:       &bigquery.Clustering{Fields: []string{"namespace", "name"}},
		})
		if refused, ok := errors.AsType[*googleapi.Error](err); ok && refused.Code == http.StatusConflict {
			return nil // another was faster
		}
		return err //nolint:wrapcheck // the caller says what was done
	}
	if err != nil {
		return err //nolint:wrapcheck // the caller says what was done
	}
	have := map[string]bool{}
	for _, field := range metadata.Schema {
		have[field.Name] = true
	}
	grown := metadata.Schema
	for _, field := range schema() {
		if !have[field.Name] {
			field.Required = false // rows that are there lack it
			grown = append(grown, field)
		}
	}
	if len(grown) == len(metadata.Schema) {
		return nil
	}
	_, err = table.Update(ctx, bigquery.TableMetadataToUpdate{Schema: grown}, metadata.ETag)
	return err //nolint:wrapcheck // the caller says what was done
}

// schema of the table.
func schema() bigquery.Schema {
	field := func(name string, kind bigquery.FieldType, description string) *bigquery.FieldSchema {
		return &bigquery.FieldSchema{Name: name, Type: kind, Description: description}
	}
	text, number, at := bigquery.StringFieldType, bigquery.IntegerFieldType, bigquery.TimestampFieldType
	fields := bigquery.Schema{
		field("fact_id", text, "Id of the event: the same however often the fact is told."),
		field("fact", text, "What happened, such as completed."),
		field("cluster_uid", text, "UID of the cluster."),
		field("namespace", text, "Namespace of the workload."),
		field("kind", text, "deployment, statefulset, daemonset or group."),
		field("name", text, "Name of the workload."),
		field("occurred_at", at, "When it happened, as exactly as the cluster tells."),
		field("observed_at", at, "When it was seen."),
		field("sequence", number, "Number of the fact among those of the workload."),
	}
	for _, f := range fields {
		f.Required = true
	}
	images := field("images", text, "Images of the containers.")
	images.Repeated = true
	return append(fields,
		field("agent_id", number, "Agent that told it."),
		field("uid", text, "UID of the workload."),
		field("provenance", text, "observed, or reconstructed afterwards."),
		field("rollout_id", text, "Rollout that it belongs to."),
		field("revision", number, "Revision of the rollout."),
		field("change", text, "created, updated, rolled_back or restarted."),
		images,
		field("started_at", at, "When the rollout began to be seen."),
		field("duration_ms", number, "How long it took."),
		field("reason", text, "Why, in one word."),
		field("message", text, "Why, in a sentence."),
		field("environment_group", text, "Environment that it belongs to."),
		field("environment_run", text, "What the run of the environment brings."),
		field("environment_url", text, "Where the environment can be reached."),
		field("data", bigquery.JSONFieldType, "The fact whole."),
	)
}

// row is a fact as a row.
type row struct {
	index  int // among the deliveries
	id     string
	values map[string]bigquery.Value
}

// Save implements bigquery.ValueSaver.
func (r *row) Save() (map[string]bigquery.Value, string, error) { return r.values, r.id, nil }

func newRow(key string, f events.DeployFact) (row, error) {
	data, err := json.Marshal(f)
	if err != nil {
		return row{}, fmt.Errorf("make a row of fact %s: %w", key, err)
	}
	v, w := sink.NewView(f, sink.Source{}), f.Workload
	values := map[string]bigquery.Value{
		"fact_id": key, "fact": v.Fact, "cluster_uid": w.ClusterUID, "namespace": w.Namespace, "kind": w.Kind, "name": w.Name,
		"occurred_at": f.OccurredAt.UTC(), "observed_at": f.ObservedAt.UTC(), "sequence": f.Sequence, "agent_id": w.AgentID, "uid": w.UID,
		"provenance": string(f.Provenance), "images": v.Images, "reason": f.Reason, "message": f.Message, "data": string(data),
	}
	if f.Rollout != nil {
		values["rollout_id"], values["revision"], values["change"] = v.Rollout, v.Revision, v.Change
	}
	if !v.Started.IsZero() {
		values["started_at"] = v.Started.UTC()
	}
	if f.DurationMs != nil {
		values["duration_ms"] = *f.DurationMs
	}
	if f.Environment != nil {
		values["environment_group"], values["environment_run"], values["environment_url"] = v.Group, v.Run, v.URL
	}
	return row{id: insertID(key), values: values}, nil
}
