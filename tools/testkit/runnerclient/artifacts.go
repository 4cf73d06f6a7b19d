package runnerclient

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
)

// uploadAttempts is how often an upload is tried while the server answers 5xx.
const uploadAttempts = 3

// Upload is an artifact that is uploaded.
type Upload struct {
	Filename string
	// Type, Format and ExpireIn are those of the [Artifact].
	Type, Format, ExpireIn string
	// Open returns the content from its start: once for each attempt.
	Open func() io.Reader
}

// UploadArtifact uploads with chunks and without a known length. It tries again after a status of 5xx.
func (c *Client) UploadArtifact(ctx context.Context, job *Job, upload Upload) error {
	query := url.Values{}
	for name, value := range map[string]string{
		"artifact_format": upload.Format, "artifact_type": upload.Type, "expire_in": upload.ExpireIn,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	path := fmt.Sprintf("/jobs/%d/artifacts?%s", job.ID, query.Encode())
	for attempt := 1; ; attempt++ {
		a, err := c.upload(ctx, path, job.Token, upload)
		if err != nil {
			return err
		}
		var body map[string]any
		err = a.into(&body, http.StatusCreated)
		if err == nil || a.status < http.StatusInternalServerError || attempt == uploadAttempts {
			return err
		}
		if err := c.pause(ctx, defaultInterval); err != nil {
			return err
		}
	}
}

func (c *Client) upload(ctx context.Context, path, token string, upload Upload) (answer, error) {
	form := multipart.NewWriter(nil)
	boundary := form.Boundary()
	open := func() (io.ReadCloser, error) { return stream(boundary, upload), nil }
	body, _ := open() // it never fails; http wants the error
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, body)
	if err != nil {
		return answer{}, errors.Join(fmt.Errorf("upload: %w", err), body.Close())
	}
	request.GetBody = open // for redirects
	request.Header = http.Header{"Job-Token": {token}, "Content-Type": {form.FormDataContentType()}}
	response, err := c.cfg.HTTP.Do(request)
	if err != nil {
		return answer{}, fmt.Errorf("POST %s: %w", path, err)
	}
	return read("POST "+path, response)
}

// stream encodes the form while it is read.
func stream(boundary string, upload Upload) io.ReadCloser {
	reader, writer := io.Pipe()
	go func() {
		form := multipart.NewWriter(writer)
		err := form.SetBoundary(boundary)
		var part io.Writer
		if err == nil {
			part, err = form.CreateFormFile("file", upload.Filename)
		}
		if err == nil {
			_, err = io.Copy(part, upload.Open())
		}
		if err == nil {
			err = form.Close()
		}
		writer.CloseWithError(err) // nil means the end
	}()
	return reader
}

// DownloadArtifact returns the artifacts of a dependency. It follows redirects. Close the reader.
func (c *Client) DownloadArtifact(ctx context.Context, dependency Dependency) (io.ReadCloser, error) {
	path := fmt.Sprintf("/jobs/%d/artifacts?direct_download=true", dependency.ID)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("download: %w", err)
	}
	request.Header.Set("Job-Token", dependency.Token)
	response, err := c.cfg.HTTP.Do(request)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	if response.StatusCode != http.StatusOK {
		a, err := read("GET "+path, response)
		if err != nil {
			return nil, err
		}
		return nil, a.failure()
	}
	return response.Body, nil
}

// Zip returns an archive of files.
func Zip(files map[string][]byte) ([]byte, error) {
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file, err := w.Create(name)
		if err == nil {
			_, err = file.Write(files[name])
		}
		if err != nil {
			return nil, fmt.Errorf("zip %s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("zip: %w", err)
	}
	return archive.Bytes(), nil
}

// Unzip returns the files of an archive, without folders.
func Unzip(archive []byte) (map[string][]byte, error) {
	reader, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		return nil, fmt.Errorf("unzip: %w", err)
	}
	files := map[string][]byte{}
	for _, entry := range reader.File {
		if entry.FileInfo().IsDir() {
			continue
		}
		file, err := entry.Open()
		if err != nil {
			return nil, fmt.Errorf("unzip %s: %w", entry.Name, err)
		}
		content, err := io.ReadAll(file)
		if err := errors.Join(err, file.Close()); err != nil {
			return nil, fmt.Errorf("unzip %s: %w", entry.Name, err)
		}
		files[entry.Name] = content
	}
	return files, nil
}
