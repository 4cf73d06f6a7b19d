package gitlab

import (
	"cmp"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strconv"
	"unicode"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/wire"
)

const (
	defaultType   = "archive"
	defaultFormat = "zip"
)

func (h *handler) uploadArtifact(w http.ResponseWriter, r *http.Request) error {
	ref, err := jobRef(r, "")
	if err != nil {
		return err
	}
	query := r.URL.Query()
	upload := Upload{
		Type:     cmp.Or(query.Get("artifact_type"), defaultType),
		Format:   cmp.Or(query.Get("artifact_format"), defaultFormat),
		ExpireIn: query.Get("expire_in"),
	}
	if err := upload.validate(); err != nil {
		return err
	}
	state, err := h.cfg.Jobs.Authorize(r.Context(), ref, jobtoken.ScopeUpload)
	if err != nil {
		return jobError(w, state, err)
	}
	setState(w, state)
	form, err := r.MultipartReader()
	if err != nil {
		return fault.Wrap(err, errcode.InvalidArgument,
			"the body is no form: send multipart/form-data with a part named file")
	}
	part, err := filePart(form)
	if err != nil {
		return err
	}
	if upload.Filename = part.FileName(); upload.Filename == "" {
		return fault.New(errcode.InvalidArgument, "the part file has no file name")
	}
	if err := checkText("filename", upload.Filename); err != nil {
		return err
	}
	content := &clientReader{reader: part}
	if state, err = h.cfg.Artifacts.Store(r.Context(), ref, upload, content); err != nil {
		if content.err != nil {
			err = fault.Wrap(err, errcode.InvalidArgument, "the artifact is not complete: send it again")
		}
		return jobError(w, state, err)
	}
	setState(w, state)
	h.write(w, r, http.StatusCreated, struct{}{})
	return nil
}

// filePart returns the part named file.
func filePart(form *multipart.Reader) (*multipart.Part, error) {
	part, err := form.NextPart()
	if err != nil || part.FormName() != "file" {
		return nil, fault.Wrap(err, errcode.InvalidArgument, "the first part of the form is not named file")
	}
	return part, nil
}

func (u Upload) validate() error {
	if !slices.Contains([]string{"zip", "gzip", "raw"}, u.Format) {
		return fault.New(errcode.InvalidArgument, "artifact_format: must be zip, gzip or raw")
	}
	return errors.Join(checkText("artifact_type", u.Type), checkText("expire_in", u.ExpireIn))
}

func checkText(name, text string) error {
	if len(text) > wire.MaxText || slices.ContainsFunc([]rune(text), unicode.IsControl) {
		return fault.New(errcode.InvalidArgument, "%s: must have at most %d bytes and no control characters", name,
			wire.MaxText)
	}
	return nil
}

func (h *handler) downloadArtifact(w http.ResponseWriter, r *http.Request) error {
	ref, err := jobRef(r, "")
	if err != nil {
		return err
	}
	direct, err := strconv.ParseBool(cmp.Or(r.URL.Query().Get("direct_download"), "false"))
	if err != nil {
		return fault.New(errcode.InvalidArgument, "direct_download: must be true or false")
	}
	download, err := h.cfg.Artifacts.Open(r.Context(), ref, direct)
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	if download.Location != "" {
		w.Header().Set("Location", download.Location)
		w.WriteHeader(http.StatusFound)
		return nil
	}
	header := w.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Length", strconv.FormatInt(download.Size, 10))
	header.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": download.Filename}))
	w.WriteHeader(http.StatusOK)
	_, err = io.Copy(w, download.Content)
	if err := errors.Join(err, download.Content.Close()); err != nil {
		// The length was sent, so the client sees that the artifact is not complete.
		h.cfg.Logger.WarnContext(r.Context(), "artifact not sent completely", logkey.Error(err))
		panic(http.ErrAbortHandler)
	}
	return nil
}
