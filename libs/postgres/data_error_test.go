package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/postgres"
)

func TestDataErrors(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{
		"22021": true, "22003": true, "22P05": true, "23505": true, "23503": true, "54000": true,
		"40001": false, "40P01": false, "57P01": false, "57014": false, "53100": false, "08006": false,
		"25P02": false, "42703": false, "55P03": false, "": false,
	} {
		err := fmt.Errorf("handler: %w", &pgconn.PgError{Code: code})
		require.Equal(t, want, postgres.IsDataError(err), code)
		require.Equal(t, strings.HasPrefix(code, "23"), postgres.IsConstraintViolation(err), code)
	}
	require.False(t, postgres.IsDataError(nil))
	require.False(t, postgres.IsDataError(errors.New("SQLSTATE 22021")))
	require.False(t, postgres.IsDataError(context.Canceled))
}
