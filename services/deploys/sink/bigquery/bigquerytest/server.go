// Package bigquerytest contains a fake BigQuery server for tests. It implements tables and tabledata.insertAll of the
// REST API, and checks rows like BigQuery.
package bigquerytest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep.internal/services/deploys/sink/sinktest"
)

// Field is a column.
type Field struct {
	Name string `json:"name"`
	Type string `json:"type"`
	Mode string `json:"mode,omitempty"`
}

// Table is a table with its rows.
type Table struct {
	Schema struct {
		Fields []Field `json:"fields"`
	} `json:"schema"`
	TableReference   json.RawMessage `json:"tableReference"`   //nolint:tagliatelle // as Google spells it
	TimePartitioning json.RawMessage `json:"timePartitioning"` //nolint:tagliatelle // as Google spells it
	Clustering       json.RawMessage `json:"clustering"`
	Etag             string          `json:"etag"`

	Rows []map[string]any `json:"-"`
	seen map[string]bool
}

// Server is a fake BigQuery server with one dataset.
type Server struct {
	*httptest.Server

	// Faults are applied before the request reaches the API.
	Faults sinktest.Faults
	// MaxBytes is the maximum size of an insert request. Defaults to 10 MB, as in BigQuery.
	MaxBytes int

	mu       sync.Mutex
	tables   map[string]*Table
	notReady int
}

// Dataset is the only dataset. Every project has it.
const Dataset = "deploys"

// Start starts a server. It stops at the end of the test.
func Start(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{tables: map[string]*Table{}, MaxBytes: 10 << 20}
	mux := http.NewServeMux()
	const tables = "/bigquery/v2/projects/{project}/datasets/{dataset}/tables"
	mux.HandleFunc("POST "+tables, s.handle(s.create))
	mux.HandleFunc("GET "+tables+"/{table}", s.handle(s.get))
	mux.HandleFunc("PATCH "+tables+"/{table}", s.handle(s.patch))
	mux.HandleFunc("POST "+tables+"/{table}/insertAll", s.handle(s.insertAll))
	s.Server = httptest.NewServer(s.Faults.Wrap(mux))
	tb.Cleanup(s.Close)
	return s
}

// APIURL returns the base URL of the API.
func (s *Server) APIURL() string { return s.URL + "/bigquery/v2/" }

// NotReady makes the next n inserts fail with "table not found". BigQuery does so for a while after a table was
// created.
func (s *Server) NotReady(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notReady = n
}

// Rows returns the rows of the table.
func (s *Server) Rows(table string) []map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tables[table] == nil {
		return nil
	}
	return append([]map[string]any(nil), s.tables[table].Rows...)
}

// Table returns a copy of the table, or nil.
func (s *Server) Table(name string) *Table {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tables[name] == nil {
		return nil
	}
	t := *s.tables[name]
	t.Schema.Fields = append([]Field(nil), t.Schema.Fields...)
	return &t
}

// Drop removes the table, or some of its columns.
func (s *Server) Drop(name string, columns ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(columns) == 0 {
		delete(s.tables, name)
		return
	}
	t := s.tables[name]
	kept := t.Schema.Fields[:0:0]
	for _, f := range t.Schema.Fields {
		if !strings.Contains(" "+strings.Join(columns, " ")+" ", " "+f.Name+" ") {
			kept = append(kept, f)
		}
	}
	t.Schema.Fields = kept
}

// ErrorBody returns the body of an error response of a Google API.
func ErrorBody(code int, reason, message string) string {
	body, _ := json.Marshal( //nolint:errchkjson // strings and numbers
		map[string]any{"error": map[string]any{
			"code":    code,
			"message": message,
			"errors":  []map[string]any{{"reason": reason, "message": message, "domain": "global"}},
		}})
	return string(body)
}

func (s *Server) handle(serve func(r *http.Request) (int, any)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		w.Header().Set("Content-Type", "application/json; charset=UTF-8")
		code, body := http.StatusNotFound, any(ErrorBody(404, "notFound", "Not found: Dataset "+r.PathValue("dataset")))
		if r.PathValue("dataset") == Dataset {
			code, body = serve(r)
		}
		w.WriteHeader(code)
		if text, ok := body.(string); ok {
			_, _ = io.WriteString(w, text)
			return
		}
		_ = json.NewEncoder(w).Encode(body)
	}
}

func notFound(r *http.Request) (int, any) {
	return http.StatusNotFound, ErrorBody(404, "notFound", "Not found: Table "+r.PathValue("table"))
}

func invalid(message string) (int, any) {
	return http.StatusBadRequest, ErrorBody(400, "invalid", message)
}

func (s *Server) create(r *http.Request) (int, any) {
	t := &Table{seen: map[string]bool{}, Etag: "1"}
	var reference struct {
		TableID string `json:"tableId"` //nolint:tagliatelle // as Google spells it
	}
	if json.NewDecoder(r.Body).Decode(t) != nil || json.Unmarshal(t.TableReference, &reference) != nil ||
		reference.TableID == "" {
		return invalid("Required parameter is missing: tableId")
	}
	if s.tables[reference.TableID] != nil {
		return http.StatusConflict, ErrorBody(409, "duplicate", "Already Exists: Table "+reference.TableID)
	}
	s.tables[reference.TableID] = t
	return http.StatusOK, t
}

func (s *Server) get(r *http.Request) (int, any) {
	if t := s.tables[r.PathValue("table")]; t != nil {
		return http.StatusOK, t
	}
	return notFound(r)
}

func (s *Server) patch(r *http.Request) (int, any) {
	t := s.tables[r.PathValue("table")]
	if t == nil {
		return notFound(r)
	}
	if match := r.Header.Get("If-Match"); match != "" && match != t.Etag {
		return http.StatusPreconditionFailed, ErrorBody(412, "conditionNotMet", "Precondition Failed")
	}
	var change Table
	if json.NewDecoder(r.Body).Decode(&change) != nil {
		return invalid("Invalid JSON")
	}
	remaining := map[string]bool{}
	for _, f := range t.Schema.Fields {
		remaining[f.Name] = true
	}
	for _, f := range change.Schema.Fields {
		if !remaining[f.Name] && f.Mode == "REQUIRED" {
			return invalid("Provided Schema does not match: Cannot add required fields to an existing schema. (field: " +
				f.Name + ")")
		}
		delete(remaining, f.Name)
	}
	if len(remaining) > 0 {
		return invalid("Provided Schema does not match: a field is missing in new schema")
	}
	t.Schema = change.Schema
	return http.StatusOK, t
}

func (s *Server) insertAll(r *http.Request) (int, any) {
	t := s.tables[r.PathValue("table")]
	if s.notReady > 0 {
		s.notReady--
		return notFound(r)
	}
	if t == nil {
		return notFound(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return invalid("unreadable")
	}
	if len(body) > s.MaxBytes {
		return http.StatusRequestEntityTooLarge,
			ErrorBody(413, "uploadTooLarge", fmt.Sprintf("Request payload size exceeds the limit: %d bytes.", s.MaxBytes))
	}
	var request struct {
		Rows []struct {
			InsertID string         `json:"insertId"` //nolint:tagliatelle // as Google spells it
			JSON     map[string]any `json:"json"`
		} `json:"rows"`
		SkipInvalidRows bool `json:"skipInvalidRows"` //nolint:tagliatelle // as Google spells it
	}
	if json.Unmarshal(body, &request) != nil {
		return invalid("Invalid JSON payload received.")
	}
	if len(request.Rows) == 0 || len(request.Rows) > 50_000 {
		return invalid("No rows present in the request, or too many rows")
	}
	type rowErrors struct {
		Index  int              `json:"index"`
		Errors []map[string]any `json:"errors"`
	}
	var errs []rowErrors
	bad := map[int]bool{}
	for i, row := range request.Rows {
		message := t.rowError(row.JSON)
		if len(row.InsertID) > 128 {
			message = "insertId is too long"
		}
		if message != "" {
			bad[i] = true
			errs = append(errs, rowErrors{i, []map[string]any{{"reason": "invalid", "location": "", "message": message}}})
		}
	}
	for i, row := range request.Rows {
		switch {
		case bad[i]:
		case len(bad) > 0 && !request.SkipInvalidRows:
			errs = append(errs, rowErrors{i, []map[string]any{{"reason": "stopped", "location": "", "message": ""}}})
		case row.InsertID != "" && t.seen[row.InsertID]:
		default:
			t.seen[row.InsertID] = true
			t.Rows = append(t.Rows, row.JSON)
		}
	}
	response := map[string]any{"kind": "bigquery#tableDataInsertAllResponse"}
	if len(errs) > 0 {
		response["insertErrors"] = errs
	}
	return http.StatusOK, response
}

// rowError returns the error of a row, or "".
func (t *Table) rowError(row map[string]any) string {
	fields := map[string]Field{}
	for _, f := range t.Schema.Fields {
		fields[f.Name] = f
		if f.Mode == "REQUIRED" && row[f.Name] == nil {
			return "Missing required field: " + f.Name + "."
		}
	}
	for name, value := range row {
		f, known := fields[name]
		if !known {
			return "no such field: " + name + "."
		}
		if f.Mode == "REPEATED" {
			if _, ok := value.([]any); !ok {
				return "Array specified for non-repeated field, or none for a repeated one: " + name + "."
			}
			continue
		}
		if value == nil {
			continue
		}
		text, isText := value.(string)
		number, isNumber := value.(float64)
		ok := true
		switch f.Type {
		case "STRING":
			ok = isText
		case "INTEGER":
			ok = isNumber && number == float64(int64(number))
		case "TIMESTAMP":
			_, err := time.Parse(time.RFC3339Nano, text)
			ok = isText && err == nil
		case "JSON":
			ok = isText && json.Valid([]byte(text))
		}
		if !ok {
			return fmt.Sprintf("Cannot convert value to %s: %s.", strings.ToLower(f.Type), name)
		}
	}
	return ""
}
