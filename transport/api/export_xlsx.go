package api

import (
	"archive/zip"
	"bufio"
	"encoding/json"
	"encoding/xml"
	"io"
)

// An .xlsx file is a zip of XML parts. What a table of texts and numbers needs of it is so little that it is written here,
// row by row; the libraries for it keep the sheet in memory and are larger than this program's REST surface.

// xlsxParts are the parts beside the sheet, in the order in which they are written.
var xlsxParts = [...][2]string{
	{"[Content_Types].xml", `<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">` +
		`<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>` +
		`<Default Extension="xml" ContentType="application/xml"/>` +
		`<Override PartName="/xl/workbook.xml" ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"/>` +
		`<Override PartName="/xl/worksheets/sheet1.xml" ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.worksheet+xml"/>` +
		`</Types>`},
	{"_rels/.rels", `<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">` +
		`<Relationship Id="rId1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" Target="xl/workbook.xml"/>` +
		`</Relationships>`},
	{"xl/workbook.xml", `<workbook xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" ` +
		`xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships">` +
		`<sheets><sheet name="Export" sheetId="1" r:id="rId1"/></sheets></workbook>`},
	{"xl/_rels/workbook.xml.rels", `<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">` +
		`<Relationship Id="rId1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/worksheet" Target="worksheets/sheet1.xml"/>` +
		`</Relationships>`},
}

const (
	xlsxHead = `<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>`
	xlsxTail = `</sheetData></worksheet>`
	// maxXLSXCell is the most characters that a spreadsheet takes in a cell; longer texts are cut.
	maxXLSXCell = 32767
)

type xlsxExport struct {
	buf   *bufio.Writer
	zip   *zip.Writer
	sheet io.Writer
	err   error // the first; it stays
}

func newXLSXExport(buf *bufio.Writer, columns []string) *xlsxExport {
	out := &xlsxExport{buf: buf, zip: zip.NewWriter(buf)}
	for _, part := range xlsxParts {
		out.begin(part[0])
		out.write(part[1])
	}
	out.begin("xl/worksheets/sheet1.xml")
	out.write(xlsxHead + "<row>")
	for _, name := range columns {
		out.text(name)
	}
	out.write("</row>")
	return out
}

func (e *xlsxExport) begin(part string) {
	if e.err == nil {
		e.sheet, e.err = e.zip.Create(part)
	}
	e.write(xml.Header)
}

func (e *xlsxExport) write(s string) {
	if e.err == nil {
		_, e.err = io.WriteString(e.sheet, s)
	}
}

// text writes a cell that is never taken for a formula.
func (e *xlsxExport) text(s string) {
	e.write(`<c t="inlineStr"><is><t xml:space="preserve">`)
	if e.err == nil {
		e.err = xml.EscapeText(e.sheet, []byte(cut(s, maxXLSXCell)))
	}
	e.write(`</t></is></c>`)
}

func (e *xlsxExport) row(cells []json.RawMessage) error {
	e.write("<row>")
	for _, cell := range cells {
		switch c := cell[0]; {
		case c == 'n':
			e.write("<c/>")
		case c == '"':
			var s string
			_ = json.Unmarshal(cell, &s) // we encoded it
			e.text(s)
		case c == '-' || (c >= '0' && c <= '9'):
			e.write("<c><v>" + string(cell) + "</v></c>")
		default:
			e.text(string(cell))
		}
	}
	e.write("</row>")
	return e.err
}

func (e *xlsxExport) end() error {
	e.write(xlsxTail)
	if e.err != nil {
		return e.err
	}
	if err := e.zip.Close(); err != nil {
		return err
	}
	return e.buf.Flush()
}
