package e2e_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/libs/topology"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// secrets are values to look for where they must not be.
type secrets struct {
	mu     sync.Mutex
	values []string
}

// add notes a value.
func (s *secrets) add(value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values = append(s.values, value)
}

// make makes up a value and notes it.
func (s *secrets) make() string {
	value := "secret-value-" + uuid.NewString()
	s.add(value)
	return value
}

// findIn returns what is found of the values, as they are or in the usual disguises.
func (s *secrets) findIn(content []byte) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []string
	for _, value := range s.values {
		for _, looks := range []string{value, base64.RawStdEncoding.EncodeToString([]byte(value)), base64.RawURLEncoding.EncodeToString([]byte(value)), hex.EncodeToString([]byte(value))} {
			if bytes.Contains(content, []byte(looks)) {
				found = append(found, value)
			}
		}
	}
	return found
}

// requireKept looks for the values in every stream, every table and the services' log.
func (s *secrets) requireKept(t *testing.T, running *system) {
	t.Helper()
	for _, stream := range topology.Streams() {
		for _, r := range running.records(stream.Family) {
			require.Empty(t, s.findIn(fmt.Append(nil, r.subject, r.header)), "header of %s, sequence %d", stream.Name, r.sequence)
			require.Empty(t, s.findIn(r.data), "data of %s, sequence %d", stream.Name, r.sequence)
		}
	}
	conn, err := pgx.Connect(t.Context(), running.Database().URL())
	require.NoError(t, err)
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), `SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')`)
	require.NoError(t, err)
	tables, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (pgx.Identifier, error) {
		table := make(pgx.Identifier, 2)
		return table, row.Scan(&table[0], &table[1])
	})
	require.NoError(t, err)
	require.NotEmpty(t, tables)
	for _, table := range tables {
		rows, err := conn.Query(t.Context(), "SELECT row::text FROM "+table.Sanitize()+" AS row")
		require.NoError(t, err)
		content, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		for _, row := range content {
			require.Empty(t, s.findIn([]byte(row)), "table %s", table.Sanitize())
		}
	}
	log, err := os.ReadFile(running.LogFile())
	require.NoError(t, err)
	require.NotEmpty(t, log)
	require.Empty(t, s.findIn(log), "the services' log")
}

// secretsReachTheClusterOnly leaves values behind for requireSoundHistory to look for.
func secretsReachTheClusterOnly(s *system) {
	t := s.t
	variable, file := s.secrets.make(), s.secrets.make()
	w := s.createAs(&statev1.CreateWorkspaceRequest{Name: "secretive", Overrides: &statev1.WorkspaceOverrides{
		Image: goodImage, SecretEnv: map[string]string{"TOKEN": variable}, SecretFiles: map[string][]byte{"ssh/id": []byte(file)},
	}})
	shown := w.untilRunning()
	require.Equal(t, []string{"TOKEN"}, shown.GetSpec().GetSecretEnv())
	require.Equal(t, []string{"ssh/id"}, shown.GetSpec().GetSecretFiles())
	require.Equal(t, []string{variable}, w.secretValues("-env"))
	require.Equal(t, []string{file}, w.secretValues("-files"))
	before := w.podUID()

	changed := s.secrets.make()
	w.update(&statev1.WorkspaceOverrides{SecretEnv: map[string]string{"TOKEN": changed}})
	w.until("Running with the new value", func(now *statev1.Workspace) bool {
		return settled(statev1.ActualState_ACTUAL_STATE_RUNNING)(now) && now.GetDesiredRevision() > shown.GetDesiredRevision()
	})
	require.Equal(t, []string{changed}, w.secretValues("-env"))
	w.awaitPodOtherThan(before)
}

func (w *workspace) secretValues(suffix string) []string {
	w.t.Helper()
	held, err := w.s.kube.CoreV1().Secrets(w.namespace).Get(w.t.Context(), w.name+suffix, metav1.GetOptions{})
	require.NoError(w.t, err)
	values := make([]string, 0, len(held.Data))
	for _, value := range held.Data {
		values = append(values, string(value))
	}
	return values
}
