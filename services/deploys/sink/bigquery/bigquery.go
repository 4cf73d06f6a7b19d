// Package bigquery contains the sink that inserts each fact as a row into a BigQuery table.
//
// The sink creates the table if it is missing, partitioned by day of occurred_at and clustered by
// namespace and name, and adds missing columns. The dataset must exist. The column data holds the
// complete fact.
//
// Rows are streamed by tabledata.insertAll. The id of the event is the insert id, so BigQuery drops a repeated row
// within about a minute. The column fact_id has that id too, so that queries can remove other duplicates.
//
// An invalid row is dead-lettered without the other rows of its batch. Every other error is retried.
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

	"lockstep.internal/libs/egress"

	"cloud.google.com/go/bigquery"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
	htransport "google.golang.org/api/transport/http"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
)

// Config of a table.
type Config struct {
	Project         string        `yaml:"project" help:"project of the dataset"`
	Dataset         string        `yaml:"dataset" help:"dataset of the table; it must exist"`
	Table           string        `yaml:"table" help:"table; it is created if it is missing"`
	CredentialsFile config.Secret `yaml:"credentials_file" help:"key of a service account that can create tables and insert rows in the dataset; default: the credentials of the machine"`
	APIURL          config.URL    `yaml:"api_url" help:"URL of another API, such as an emulator; without credentials_file the sink sends no credentials to it; default: Google's"`
}

// DefaultConfig returns the default configuration.
func DefaultConfig() Config { return Config{Table: "deploy_facts"} }

// Missing returns the required settings that are absent.
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

// Validate returns the errors of the settings.
func (c Config) Validate() []error {
	var faults []error
	if c.Project != "" && !projectPattern.MatchString(c.Project) {
		faults = append(faults, config.Invalid("project", "%q is not an id of a project", c.Project))
	}
	for key, value := range map[string]string{"dataset": c.Dataset, "table": c.Table} {
		if value != "" && !datasetPattern.MatchString(value) {
			faults = append(faults, config.Invalid(key, "%q does not consist of letters, digits and underscores", value))
		}
	}
	if u, err := url.Parse(c.APIURL.Reveal()); c.APIURL != "" && (err != nil || u.Host == "") {
		faults = append(faults, config.Invalid("api_url", "not a URL"))
	}
	return faults
}

// Options in addition to the configuration.
type Options struct {
	// Transport with rate limits and address checks. Required.
	Transport http.RoundTripper
	// Timeout of one insert, including the retries of the client. Defaults to 30 s.
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

// New returns the sink. It connects at the first delivery.
func New(cfg Config, o Options) *Sink {
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	return &Sink{cfg: cfg, options: o}
}

// batch is the maximum number of rows of one request. BigQuery recommends at most 500.
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
	results := make([]error, len(deliveries))
	rows := make([]row, 0, len(deliveries))
	for i, d := range deliveries {
		r, err := newRow(d.Key, d.Fact)
		if err != nil {
			results[i] = retry.Permanent(err)
			continue
		}
		r.index = i
		rows = append(rows, r)
	}
	table, err := s.table(ctx)
	if err != nil {
		setErrors(rows, results, newError("prepare the table", err))
		return results
	}
	s.insert(ctx, table, rows, results)
	return results
}

// setErrors sets the error of all rows.
func setErrors(rows []row, results []error, err error) {
	for _, r := range rows {
		results[r.index] = err
	}
}

// insert inserts the rows. It splits a batch that is too large.
func (s *Sink) insert(ctx context.Context, table *bigquery.Table, rows []row, results []error) {
	if len(rows) == 0 {
		return
	}
	savers := make([]bigquery.ValueSaver, len(rows))
	for i := range rows {
		savers[i] = &rows[i]
	}
	err := table.Inserter().Put(ctx, savers)
	var invalid bigquery.PutMultiError
	var apiError *googleapi.Error
	switch {
	case err == nil:
	case errors.As(err, &invalid):
		s.setRowErrors(rows, invalid, results)
	case errors.As(err, &apiError) && apiError.Code == http.StatusRequestEntityTooLarge:
		if len(rows) == 1 {
			results[rows[0].index] = retry.Permanent(fmt.Errorf("insert the row: %w", err))
			return
		}
		s.insert(ctx, table, rows[:len(rows)/2], results)
		s.insert(ctx, table, rows[len(rows)/2:], results)
	default:
		if errors.As(err, &apiError) && apiError.Code == http.StatusNotFound {
			s.recheckTable()
		}
		setErrors(rows, results, newError("insert rows", err))
	}
}

// setRowErrors sets the error of each row that BigQuery reports. BigQuery also reports the valid rows that it did not
// insert because of an invalid row.
func (s *Sink) setRowErrors(rows []row, invalid bigquery.PutMultiError, results []error) {
	for _, e := range invalid {
		err := fmt.Errorf("insert the row: %w", e.Errors)
		for _, cause := range e.Errors {
			if known, ok := errors.AsType[*bigquery.Error](cause); ok && known.Reason == "invalid" {
				err = retry.Permanent(err)
				break
			}
		}
		if e.RowIndex < len(rows) {
			results[rows[e.RowIndex].index] = err
		}
	}
}

func newError(action string, err error) error {
	wrapped := fmt.Errorf("%s: %w", action, egress.WithoutURL(err))
	if apiError, ok := errors.AsType[*googleapi.Error](err); ok {
		if delay, ok := egress.ParseRetryAfter(apiError.Header, time.Now()); ok {
			return &sink.RetryAfter{Delay: delay, Err: wrapped}
		}
	}
	return wrapped
}

// recheckTable makes the next delivery check the table again.
func (s *Sink) recheckTable() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ensured = false
}

// table connects to BigQuery if needed, and ensures that the table exists.
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
	// The client outlives the first delivery.
	ctx = context.WithoutCancel(ctx)
	authentication := []option.ClientOption{option.WithScopes(bigquery.Scope)}
	var clientOptions []option.ClientOption
	if s.cfg.APIURL != "" {
		clientOptions = append(clientOptions, option.WithEndpoint(s.cfg.APIURL.Reveal()))
	}
	switch {
	case s.cfg.CredentialsFile.IsSet():
		key, err := s.cfg.CredentialsFile.Read()
		if err != nil {
			return nil, fmt.Errorf("read the credentials for BigQuery: %w", err)
		}
		authentication = append(authentication, option.WithAuthCredentialsJSON(option.ServiceAccount, []byte(key)))
	case s.cfg.APIURL != "":
		authentication = []option.ClientOption{option.WithoutAuthentication()}
	}
	transport, err := htransport.NewTransport(ctx, s.options.Transport, authentication...)
	if err != nil {
		return nil, fmt.Errorf("authenticate to BigQuery: %w", err)
	}
	clientOptions = append(clientOptions, option.WithHTTPClient(&http.Client{Transport: transport}))
	client, err := bigquery.NewClient(ctx, s.cfg.Project, clientOptions...)
	if err != nil {
		return nil, fmt.Errorf("create the client for BigQuery: %w", err)
	}
	return client, nil
}

// ensure creates the table or adds missing columns.
func ensure(ctx context.Context, table *bigquery.Table) error {
	metadata, err := table.Metadata(ctx)
	if apiError, ok := errors.AsType[*googleapi.Error](err); ok && apiError.Code == http.StatusNotFound {
		err = table.Create(ctx, &bigquery.TableMetadata{
			Description: "Facts about deploys, published by Lockstep.", Schema: schema(),
			TimePartitioning: &bigquery.TimePartitioning{Type: bigquery.DayPartitioningType, Field: "occurred_at"},
			Clustering:       &bigquery.Clustering{Fields: []string{"namespace", "name"}},
		})
		if apiError, ok := errors.AsType[*googleapi.Error](err); ok && apiError.Code == http.StatusConflict {
			return nil // Another replica created it.
		}
		return err //nolint:wrapcheck // Wrapped by the caller.
	}
	if err != nil {
		return err //nolint:wrapcheck // Wrapped by the caller.
	}
	existing := map[string]bool{}
	for _, field := range metadata.Schema {
		existing[field.Name] = true
	}
	extended := metadata.Schema
	for _, field := range schema() {
		if !existing[field.Name] {
			field.Required = false // Existing rows lack it.
			extended = append(extended, field)
		}
	}
	if len(extended) == len(metadata.Schema) {
		return nil
	}
	_, err = table.Update(ctx, bigquery.TableMetadataToUpdate{Schema: extended}, metadata.ETag)
	return err //nolint:wrapcheck // Wrapped by the caller.
}

// schema returns the schema of the table.
func schema() bigquery.Schema {
	field := func(name string, kind bigquery.FieldType, description string) *bigquery.FieldSchema {
		return &bigquery.FieldSchema{Name: name, Type: kind, Description: description}
	}
	text, number, at := bigquery.StringFieldType, bigquery.IntegerFieldType, bigquery.TimestampFieldType
	fields := bigquery.Schema{
		field("fact_id", text, "Id of the event, the same in every delivery."),
		field("fact", text, "Name of the fact, such as completed."),
		field("cluster_uid", text, "UID of the cluster."),
		field("namespace", text, "Namespace of the workload."),
		field("kind", text, "deployment, statefulset, daemonset or group."),
		field("name", text, "Name of the workload."),
		field("occurred_at", at, "When it happened, as precisely as the cluster reports it."),
		field("observed_at", at, "When the watcher observed it."),
		field("sequence", number, "Number of the fact among those of the workload."),
	}
	for _, f := range fields {
		f.Required = true
	}
	images := field("images", text, "Images of the containers.")
	images.Repeated = true
	return append(fields,
		field("agent_id", number, "Agent that reported it."),
		field("uid", text, "UID of the workload."),
		field("provenance", text, "observed or reconstructed."),
		field("rollout_id", text, "Rollout of the fact."),
		field("revision", number, "Revision of the rollout."),
		field("change", text, "created, updated, rolled_back or restarted."),
		images,
		field("started_at", at, "When the start of the rollout was observed."),
		field("duration_ms", number, "Duration in milliseconds."),
		field("reason", text, "Machine-readable reason."),
		field("message", text, "Reason as a sentence."),
		field("environment_group", text, "Environment of the fact."),
		field("environment_run", text, "Run of the environment, such as a commit."),
		field("environment_url", text, "URL of the environment."),
		field("data", bigquery.JSONFieldType, "The complete fact."),
	)
}

// row is the row of one fact.
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
		return row{}, fmt.Errorf("encode fact %s as a row: %w", key, err)
	}
	v, w := sink.NewView(f, sink.Source{}), f.Workload
	values := map[string]bigquery.Value{
		"fact_id": key, "fact": v.Fact, "cluster_uid": w.ClusterUID, "namespace": w.Namespace, "kind": w.Kind, "name": w.Name,
		"occurred_at": f.OccurredAt.UTC(), "observed_at": f.ObservedAt.UTC(), "sequence": f.Sequence,
		"agent_id": w.AgentID, "uid": w.UID, "provenance": string(f.Provenance), "images": v.Images,
		"reason": f.Reason, "message": f.Message, "data": string(data),
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
		values["environment_group"], values["environment_run"], values["environment_url"] = v.Group, v.Run, string(v.URL)
	}
	return row{id: insertID(key), values: values}, nil
}
