package s3_test

import (
	"errors"
	"fmt"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/services/runners/objects"
	"lockstep.internal/services/runners/objects/objectstest"
	"lockstep.internal/tools/testkit/s3d"
	"lockstep.internal/tools/testkit/s3fake"
)

const bucket = "artifacts"

// fixture is a server with one bucket.
type fixture struct {
	url            string
	access, secret string // files
	prefixes       atomic.Int32
}

func newFixture(t *testing.T, address string) *fixture {
	t.Helper()
	return &fixture{
		url: address, access: objectstest.File(t, s3d.AccessKey), secret: objectstest.File(t, s3d.SecretKey+"\n"),
	}
}

// fake returns a server in memory.
func fake(t *testing.T) *fixture {
	t.Helper()
	server, err := s3fake.Start(bucket)
	require.NoError(t, err)
	t.Cleanup(server.Close)
	return newFixture(t, server.URL)
}

// real returns a real server, or skips the test if there is none.
func realServer(t *testing.T) *fixture {
	t.Helper()
	server, err := s3d.Start(t.Context(), t.TempDir())
	if errors.Is(err, s3d.ErrMissing) {
		t.Skip("not shown: ", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	address, err := url.Parse(server.URL)
	require.NoError(t, err)
	transport, err := minio.DefaultTransport(false)
	require.NoError(t, err)
	defer transport.CloseIdleConnections()
	client, err := minio.New(address.Host, &minio.Options{
		Creds: credentials.NewStaticV4(s3d.AccessKey, s3d.SecretKey, ""), Transport: transport,
	})
	require.NoError(t, err)
	require.NoError(t, client.MakeBucket(t.Context(), bucket, minio.MakeBucketOptions{}))
	return newFixture(t, server.URL)
}

// config returns an empty part of the bucket.
func (f *fixture) config() objects.Config {
	cfg := objects.DefaultConfig()
	cfg.Kind = objects.KindS3
	cfg.S3.Endpoint = config.URL(f.url)
	cfg.S3.Bucket = bucket
	cfg.S3.Prefix = fmt.Sprintf("tests/%d", f.prefixes.Add(1))
	cfg.S3.AccessKeyFile, cfg.S3.SecretKeyFile = config.SecretFile(f.access), config.SecretFile(f.secret)
	return cfg
}

// open opens a store until the test ends.
func open(t *testing.T, cfg objects.Config) objects.Store {
	t.Helper()
	store, err := objects.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}
