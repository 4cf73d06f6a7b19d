package s3_test

import (
	"encoding/pem"
	"io"
	"mime"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/objects"
	"lockstep.internal/services/runners/objects/objectstest"
	"lockstep.internal/tools/testkit/s3d"
)

func TestStoreOnFake(t *testing.T) {
	t.Parallel()
	f := fake(t)
	objectstest.Run(t, func(*testing.T) objects.Config { return f.config() })
}

func TestStoreOnMinIO(t *testing.T) {
	t.Parallel()
	f := realServer(t)
	objectstest.Run(t, func(*testing.T) objects.Config { return f.config() })
}

func TestSignedURLDownloadsAsAFileOnFake(t *testing.T) {
	t.Parallel()
	signedURLDownloads(t, fake(t))
}

func TestSignedURLDownloadsAsAFileOnMinIO(t *testing.T) {
	t.Parallel()
	f := realServer(t)
	signedURLDownloads(t, f)
	signed := presigned(t, f, `a.zip`)
	changed := strings.Replace(signed, "a.zip", "b.zip", 1)
	require.NotEqual(t, signed, changed)
	response := get(t, changed)
	require.Equal(t, http.StatusForbidden, response.StatusCode, "the signature covers the name")
}

func signedURLDownloads(t *testing.T, f *fixture) {
	t.Helper()
	for _, filename := range []string{"a.zip", `quote".zip`, "späße.zip", "a; filename=b.exe"} {
		response := get(t, presigned(t, f, filename))
		content, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, response.StatusCode, "%s", content)
		require.Equal(t, "content", string(content))
		kind, parameters, err := mime.ParseMediaType(response.Header.Get("Content-Disposition"))
		require.NoError(t, err)
		require.Equal(t, "attachment", kind)
		require.Equal(t, map[string]string{"filename": filename}, parameters)
		require.Equal(t, "application/octet-stream", response.Header.Get("Content-Type"))
	}
}

// presigned stores an object and returns its URL.
func presigned(t *testing.T, f *fixture, filename string) string {
	t.Helper()
	cfg := f.config()
	cfg.S3.Presign = true
	store := open(t, cfg)
	_, err := store.Put(t.Context(), "a", strings.NewReader("content"), 7)
	require.NoError(t, err)
	signed, err := store.URL(t.Context(), "a", filename, time.Minute)
	require.NoError(t, err)
	return signed
}

func get(t *testing.T, address string) *http.Response {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	response, err := (&http.Client{Transport: transport}).Get(address)
	require.NoError(t, err)
	t.Cleanup(func() { response.Body.Close() })
	return response
}

func TestURLIsEmptyUnlessConfigured(t *testing.T) {
	t.Parallel()
	address, err := open(t, fake(t).config()).URL(t.Context(), "a", "a.zip", time.Minute)
	require.NoError(t, err)
	require.Empty(t, address)
}

func TestURLHasALongestTime(t *testing.T) {
	t.Parallel()
	cfg := fake(t).config()
	cfg.S3.Presign = true
	store := open(t, cfg)
	_, err := store.URL(t.Context(), "a", "a.zip", objects.MaxURLTime)
	require.NoError(t, err)
	_, err = store.URL(t.Context(), "a", "a.zip", objects.MaxURLTime+time.Second)
	require.Error(t, err)
}

func TestUnusableStoreIsUnavailable(t *testing.T) {
	t.Parallel()
	f := fake(t)
	missing := f.config()
	missing.S3.Bucket = "other-bucket"
	stopped := httptest.NewServer(http.NotFoundHandler())
	stopped.Close()
	down := f.config()
	down.S3.Endpoint = config.URL(stopped.URL)
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(broken.Close)
	overloaded := f.config()
	overloaded.S3.Endpoint = config.URL(broken.URL)
	for name, cfg := range map[string]objects.Config{"bucket": missing, "down": down, "overloaded": overloaded} {
		store := open(t, cfg)
		_, err := store.Put(t.Context(), "a", strings.NewReader("x"), 1)
		require.Equal(t, errcode.Unavailable, fault.From(err).Code, name)
		_, _, err = store.Open(t.Context(), "a")
		require.Equal(t, errcode.Unavailable, fault.From(err).Code, name)
		_, err = store.Sweep(t.Context(), time.Now())
		require.Equal(t, errcode.Unavailable, fault.From(err).Code, name)
		err = store.Check(t.Context())
		require.Equal(t, errcode.Unavailable, fault.From(err).Code, name)
		require.Equal(t, "the object store is unavailable: try again later", fault.From(err).Message)
	}
	require.ErrorContains(t, open(t, missing).Check(t.Context()), "the bucket does not exist: create it")
}

func TestWrongKeyIsUnavailableOnMinIO(t *testing.T) {
	t.Parallel()
	f := realServer(t)
	cfg := f.config()
	cfg.S3.SecretKeyFile = config.SecretFile(objectstest.File(t, "wrong"))
	store := open(t, cfg)
	require.Equal(t, errcode.Unavailable, fault.From(store.Check(t.Context())).Code)
	_, err := store.Put(t.Context(), "a", strings.NewReader("x"), 1)
	require.Equal(t, errcode.Unavailable, fault.From(err).Code)
	require.ErrorContains(t, err, "signature")
}

func TestPrefixSeparatesCells(t *testing.T) {
	t.Parallel()
	f := fake(t)
	one, two := open(t, f.config()), open(t, f.config())
	_, err := one.Put(t.Context(), "a", strings.NewReader("x"), 1)
	require.NoError(t, err)
	_, _, err = two.Open(t.Context(), "a")
	require.ErrorIs(t, err, objects.ErrNotFound)
	for entry := range two.List(t.Context(), time.Now().Add(time.Hour)) {
		require.Fail(t, "listed", entry.Key)
	}
	whole := f.config()
	whole.S3.Prefix = ""
	_, _, err = open(t, whole).Open(t.Context(), "tests/1/a")
	require.NoError(t, err)
}

func TestCertificateOfAConfiguredCAIsAccepted(t *testing.T) {
	t.Parallel()
	f := fake(t)
	address, err := url.Parse(f.url)
	require.NoError(t, err)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	proxy := &httputil.ReverseProxy{
		Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(address); r.Out.Host = r.In.Host },
	}
	server := httptest.NewTLSServer(proxy)
	t.Cleanup(server.Close)
	server.Config.ErrorLog = nil
	cfg := f.config()
	cfg.S3.Endpoint = config.URL(server.URL)
	require.ErrorContains(t, open(t, cfg).Check(t.Context()), "certificate")
	cfg.S3.CAFile = objectstest.File(t,
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	require.NoError(t, open(t, cfg).Check(t.Context()))
}

func TestConfigNamesEachWrongSetting(t *testing.T) {
	t.Parallel()
	valid := newFixture(t, "https://s3.example:9000").config()
	require.Empty(t, valid.Validate())
	for name, change := range map[string]func(*objects.Config){
		"s3.endpoint":        func(c *objects.Config) { c.S3.Endpoint = "s3.example" },
		"s3.bucket":          func(c *objects.Config) { c.S3.Bucket = "A" },
		"s3.region":          func(c *objects.Config) { c.S3.Region = "" },
		"s3.prefix":          func(c *objects.Config) { c.S3.Prefix = "/a" },
		"s3.ca_file":         func(c *objects.Config) { c.S3.CAFile = "/missing" },
		"s3.access_key_file": func(c *objects.Config) { c.S3.AccessKeyFile = config.Secret{} },
		"s3.secret_key_file": func(c *objects.Config) { c.S3.SecretKeyFile = config.Secret{} },
	} {
		cfg := valid
		change(&cfg)
		problems := cfg.Validate()
		require.Len(t, problems, 1, name)
		require.ErrorContains(t, problems[0], name)
		_, err := objects.Open(cfg)
		require.ErrorContains(t, err, name)
	}
	for _, endpoint := range []config.URL{"https://a/b", "https://u:p@a", "https://a?b=c", "ftp://a", "https://", ":"} {
		cfg := valid
		cfg.S3.Endpoint = endpoint
		require.Len(t, cfg.Validate(), 1, endpoint)
	}
	disk := objects.Config{Kind: objects.KindDisk}
	require.Len(t, disk.Validate(), 1)
	disk.Kind = "tape"
	_, err := objects.Open(disk)
	require.ErrorContains(t, err, "use disk or s3")
}

func TestBucketIsInTheHostUnlessPathStyle(t *testing.T) {
	t.Parallel()
	cfg := newFixture(t, "https://s3.example:9000").config()
	cfg.S3.Presign = true
	for pathStyle, want := range map[bool]string{
		true: "https://s3.example:9000/artifacts/tests/", false: "https://artifacts.s3.example:9000/tests/",
	} {
		cfg.S3.PathStyle = pathStyle
		address, err := open(t, cfg).URL(t.Context(), "a", "a", time.Minute)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(address, want), address)
		require.Contains(t, address, s3d.AccessKey)
		require.NotContains(t, address, s3d.SecretKey)
	}
}
